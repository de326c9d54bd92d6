"""Split models: complete sets open from any shard or their folder; anything else is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.formats.gguf import open_gguf
from spola.formats.gguf_write import NewTensor, write_gguf, write_split_gguf
from support.gguf_raw import U16, gguf, info, pair, scalar

F32 = BY_NAME["F32"]


def _shards(first: int = 0) -> list[list[NewTensor]]:
    def tensor(index: int) -> NewTensor:
        return NewTensor(f"t{index}", F32, (4,), bytes([index]) * 16)

    return [[tensor(first), tensor(first + 1)], [tensor(first + 2)], [tensor(first + 3), tensor(first + 4)]]


@pytest.fixture
def model(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    return write_split_gguf(folder, "m", {"general.architecture": "llama"}, _shards())


def test_names_follow_the_convention(model: list[Path]) -> None:
    assert [path.name for path in model] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.mark.parametrize("chosen", [0, 1, 2, None])
def test_any_shard_and_the_folder_open_the_whole(model: list[Path], chosen: int | None) -> None:
    with open_gguf(model[0].parent if chosen is None else model[chosen]) as opened:
        assert opened.paths == tuple(model)
        assert opened.metadata["general.architecture"] == "llama"
        assert list(opened.tensors) == ["t0", "t1", "t2", "t3", "t4"]
        for index in range(5):
            assert opened.read(f"t{index}") == bytes([index]) * 16
        assert opened.tensors["t4"].path == model[2]


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("by_folder", [True, False])
def test_a_missing_shard_is_named(model: list[Path], gone: int, by_folder: bool) -> None:
    model[gone].unlink()
    chosen = model[0].parent if by_folder else model[(gone + 1) % 3]
    with pytest.raises(ModelError, match=rf"{model[gone].name}: shard {gone + 1} of 3 is missing"):
        open_gguf(chosen)


def test_swapped_shards_are_refused(model: list[Path]) -> None:
    spare = model[1].with_name("spare")
    model[1].rename(spare)
    model[2].rename(model[1])
    spare.rename(model[2])
    with pytest.raises(ModelError, match=r"m-00002-of-00003.gguf: is named shard 2 .* shard 3"):
        open_gguf(model[0])


def test_a_copied_shard_is_refused(model: list[Path]) -> None:
    shutil.copy(model[0], model[1])
    with pytest.raises(ModelError, match=r"m-00002-of-00003.gguf: is named shard 2 .* shard 1"):
        open_gguf(model[0])


def test_a_shard_of_another_model_is_refused(model: list[Path], tmp_path: Path) -> None:
    other = write_split_gguf(tmp_path, "o", {}, [[], _shards(9)[1], [], [], []])
    shutil.copy(other[1], model[1])
    with pytest.raises(ModelError, match=r"named as one of 3 shards, but its 'split.count' is 5"):
        open_gguf(model[1])
    fewer = write_split_gguf(tmp_path, "f", {}, [[], [], []])
    shutil.copy(fewer[1], model[1])
    with pytest.raises(ModelError, match=r"'split.tensors.count' is 5, but the 3 shards hold 4 tensors"):
        open_gguf(model[0])


def test_a_tensor_in_two_shards_is_refused(model: list[Path], tmp_path: Path) -> None:
    other = write_split_gguf(tmp_path, "o", {}, [[], [NewTensor("t0", F32, (4,), bytes(16))], _shards()[2]])
    shutil.copy(other[1], model[1])
    with pytest.raises(ModelError, match=r"m-00002-of-00003.gguf: tensor 't0' is also in m-00001"):
        open_gguf(model[0])


def test_a_renamed_shard_is_refused(model: list[Path]) -> None:
    renamed = model[0].with_name("model.gguf")
    model[0].rename(renamed)
    with pytest.raises(ModelError, match=r"model.gguf: is one of 3 shards, but is not named"):
        open_gguf(renamed)


def test_a_whole_model_named_as_a_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    write_gguf(path, {}, _shards()[0])
    with pytest.raises(ModelError, match=r"named as one of 2 shards, but its 'split.count' is 1"):
        open_gguf(path)


@pytest.mark.parametrize("name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_shard_numbers_out_of_range_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gguf((pair("split.count", U16, scalar(U16, 2)),)))
    with pytest.raises(ModelError, match="shards count from 1"):
        open_gguf(path)


def test_a_set_of_one_is_a_model(tmp_path: Path) -> None:
    (path,) = write_split_gguf(tmp_path, "one", {"a": 1}, _shards()[:1])
    with open_gguf(tmp_path) as opened:
        assert opened.paths == (path,)
        assert list(opened.tensors) == ["t0", "t1"]


def test_absurd_counts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-60000.gguf"
    path.write_bytes(gguf((pair("split.count", U16, scalar(U16, 60000)),)))
    with pytest.raises(ModelError, match="the limit is 512"):
        open_gguf(path)


def test_a_malformed_shard_is_named_and_all_files_are_closed(model: list[Path]) -> None:
    model[2].write_bytes(gguf((), (info("x", (4,), 0, 0),)))
    with pytest.raises(ModelError, match=r"m-00003-of-00003.gguf: tensor 'x'.*incomplete download"):
        open_gguf(model[0])


def test_folders(tmp_path: Path, model: list[Path]) -> None:
    with pytest.raises(ModelError, match=r"is a directory without a \.gguf file"):
        open_gguf(tmp_path)
    write_gguf(model[0].parent / "other.gguf", {}, [])
    with pytest.raises(ModelError, match=r"holds 2 models \('m-00001-of-00003.gguf', 'other.gguf'\)"):
        open_gguf(model[0].parent)
    for n in range(5):
        shutil.copy(model[0].parent / "other.gguf", model[0].parent / f"p{n}.gguf")
    with pytest.raises(ModelError, match=r"holds 7 models \(.*, 'p2.gguf', \.\.\.\); name one"):
        open_gguf(model[0].parent)


def test_alignment_is_that_of_each_shard(tmp_path: Path) -> None:
    write_split_gguf(tmp_path, "m", {"general.alignment": 256}, _shards())
    with open_gguf(tmp_path) as opened:
        assert all(entry.offset % 256 == 0 for entry in opened.tensors.values())
        assert opened.read("t4") == bytes([4]) * 16


def test_the_writer_refuses_a_tensor_in_two_shards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one shard only"):
        write_split_gguf(tmp_path, "m", {}, [_shards()[0], _shards()[0]])
