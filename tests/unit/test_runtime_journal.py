"""The journal: what is appended stays, what a crash cut off goes, nothing is there twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.runtime.journal import Journal, replace_file


def journal(path: Path) -> Journal:
    return Journal(path, "id")


def line(key: str) -> dict[str, str]:
    return {"id": key, "text": "ä\n" * 3}


def test_lines_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path) as j:
        j.append([line("a"), line("b")])
        j.append([line("c")])
        assert json.loads(j.line("b")) == line("b")
    with journal(path) as j:
        assert list(j.where) == ["a", "b", "c"]
        assert [json.loads(j.line(key)) for key in j.where] == [line("a"), line("b"), line("c")]
        j.append([line("d")])
        assert json.loads(j.line("d")) == line("d")
        j.remove()
    assert not path.exists()


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_line_cut_off_anywhere_is_taken_out_and_can_be_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    with journal(path) as j:
        j.append([line("a"), line("b")])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = ["a"] if cut <= len(whole) // 2 else []
    with journal(path) as j:
        assert list(j.where) == kept
        j.append([line(key) for key in ("a", "b") if key not in kept])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("rest", [b"\0" * 100, b"{}\n", b"nonsense\n", b'{"id": 1}\n', b"\xff\n"])
def test_a_last_line_that_is_none_is_taken_out(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "j"
    with journal(path) as j:
        j.append([line("a")])
    whole = path.read_bytes()
    path.write_bytes(whole + rest)
    journal(path).close()
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    data = b'{"id":"a"}\nnonsense\n{"id":"b"}\n'
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="line 2 is damaged"):
        journal(path)
    path.write_bytes(b'{"id":"a"}\n{"id":"a"}\n')
    with pytest.raises(ConfigError, match="line 2: id 'a' is there twice"):
        journal(path)


def test_a_key_is_there_once(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as j:
        j.append([line("a")])
        for lines in ([line("a")], [line("b"), line("b")]):
            with pytest.raises(ValueError, match="already"):
                j.append(lines)
        assert list(j.where) == ["a"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    # flock is of the open file: a second opening stands for a second process.
    with journal(tmp_path / "j"), pytest.raises(ConfigError, match="another process"):
        journal(tmp_path / "j")
    journal(tmp_path / "j").close()


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal(tmp_path / "j") as j:
        j.append([line("a")])
        before = (tmp_path / "j").read_bytes()
        write = os.write
        calls = []

        def full(fd: int, data: memoryview) -> int:
            calls.append(fd)
            if len(calls) > 1:
                raise OSError(28, "No space left on device")
            return write(fd, data[:7])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ConfigError, match="No space left"):
            j.append([line("b")])
        monkeypatch.undo()
        assert (tmp_path / "j").read_bytes() == before
        j.append([line("b")])
        assert json.loads(j.line("b")) == line("b")


def test_replace_file_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    replace_file(path, [b"one\n"])

    def broken():
        yield b"two\n"
        raise OSError(5, "Input/output error")

    with pytest.raises(ConfigError, match="Input/output"):
        replace_file(path, broken())
    assert path.read_bytes() == b"one\n"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="No such file"):
        replace_file(tmp_path / "none" / "out", [])
