"""Malformed and hostile GGUF files: one line that says what is wrong, and little memory."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from spola.core.errors import ModelError
from spola.formats.gguf import open_gguf
from support.gguf_raw import I32, STRING, U16, array, gguf, info, pair, text
from support.malformed_gguf import CASES, VALID, Case

# The requirement is 200 MB; this is what the reader keeps to, counting every allocation it asks for.
MEMORY = 64 << 20


@pytest.fixture
def peak() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MEMORY


def _refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.isprintable()
    assert len(message) < len(str(path)) + 200
    return message


def test_the_base_of_the_table_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "valid.gguf"
    path.write_bytes(VALID)
    with open_gguf(path) as model:
        assert model.tensors["w"].shape == (2, 8)


def test_the_table_is_long_enough_and_without_repeats() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60
    assert len({(case.data, case.size) for case in CASES}) == len(CASES)


@pytest.mark.usefixtures("peak")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_refused_with_its_reason(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "model.gguf"
    case.write(path)
    with pytest.raises(ModelError, match=case.match):
        open_gguf(path)
    _refusal(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    pairs = (
        pair("general.architecture", STRING, text("llama")),
        pair("tokens", 9, array(STRING, text("a") + text("bc"), 2)),
        pair("types", 9, array(I32, bytes(8), 2)),
    )
    whole = gguf(pairs, (info("a", (8,)), info("b", (8,), 0, 32)), bytes(64))
    path.write_bytes(whole)
    open_gguf(path).close()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        _refusal(path)


def test_versions_2_and_3_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf((pair("k", STRING, text("v")),), (info("w", (8, 2)),), bytes(64), version=2))
    with open_gguf(path) as model:
        assert (model.version, model.metadata, list(model.tensors)) == (2, {"k": "v"}, ["w"])


def test_a_header_of_large_strings_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    size = 15 << 20
    with path.open("wb") as file:
        file.write(gguf(n_pairs=9)[:24])
        for index in range(9):
            file.write(text(f"k{index}") + bytes([STRING, 0, 0, 0]) + size.to_bytes(8, "little"))
            file.seek(size, os.SEEK_CUR)
        file.write(b"end")
    tracemalloc.start()
    assert "longer than the limit of 67108864 bytes" in _refusal(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200 << 20


def test_unsupported_types_can_be_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf((), (info("a", (256,), 16), info("b", (8,), 0, 96)), bytes(128)))
    with open_gguf(path, allow_unsupported=True) as model:
        assert list(model.tensors) == ["b"]
        assert (model.unsupported["a"].type_name, model.unsupported["a"].shape) == ("IQ2_XXS", (256,))
        with pytest.raises(ModelError, match="tensor 'a' has type IQ2_XXS"):
            model.read("a")


def test_a_description_in_another_encoding_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf((pair("general.description", STRING, text(b"caf\xe9")),)))
    with open_gguf(path) as model:
        assert model.metadata["general.description"] == "caf\ufffd"


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    assert "is a pipe, not a regular file" in _refusal(path)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/dev/zero", "is a device, not a regular file"),
        ("/nonexistent/model.gguf", "no such file"),
        ("/dev/null/model.gguf", "cannot be opened"),
        ("x" * 300 + ".gguf", "cannot be opened"),
    ],
)
def test_what_is_no_file_is_refused(path: str, problem: str) -> None:
    assert problem in _refusal(Path(path))


def test_odd_paths_stay_on_one_line(tmp_path: Path) -> None:
    for name in ("line\nbreak.gguf", "nul\0.gguf"):
        with pytest.raises(ModelError) as caught:
            open_gguf(tmp_path / name)
        assert str(caught.value).isprintable()


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.gguf"
    path.symlink_to(path)
    assert "cannot be opened" in _refusal(path)


def test_a_malformed_shard_count_in_a_named_shard(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(gguf((pair("split.count", U16, b"\x02\x00"),)))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf((pair("split.count", U16, b"\x02\x00"),)))
    assert "'split.no' is missing from this shard" in _refusal(path)
