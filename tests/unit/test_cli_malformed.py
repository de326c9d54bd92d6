"""Hostile and broken model files on the command line: exit code 1 and one line that names the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spola.core.dtype import BY_NAME
from spola.formats.gguf_write import NewTensor, write_gguf
from support.cli import Done, spola
from support.malformed_gguf import CASES, Case
from support.tiny import TinyModel

NULL = ("--backend", "null")


def check(done: Done, path: Path) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("spola: error: ")
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_malformed_file(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    case.write(path)
    check(spola("run", "-m", str(path), *NULL, "hi"), path)
    looked = spola("inspect", str(path))
    if case.name.startswith("type "):  # such a file is listed, so that one can see what is in it
        assert (looked.returncode, "runs           no" in looked.stdout) == (0, True)
    else:
        check(looked, path)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "absent"])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    check(spola("run", "-m", str(path), *NULL, "hi"), path)


def drop(name: str) -> Callable[[dict[str, Any], dict[str, NewTensor]], None]:
    def change(metadata: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
        metadata.pop(name, None)
        tensors.pop(name, None)

    return change


def put(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, NewTensor]], None]:
    return lambda metadata, tensors: metadata.update({key: value})


def narrow(metadata: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
    name = "blk.0.attn_q.weight"
    old = tensors[name]
    rows, columns = old.shape
    tensors[name] = NewTensor(name, old.dtype, (rows // 2, columns), bytes(len(old.data) // 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("general.architecture"), "general.architecture"),
        (put("general.architecture", "nonsense"), "nonsense"),
        (put("general.architecture", 5), "general.architecture"),
        (drop("llama.block_count"), "llama.block_count"),
        (put("llama.block_count", 10**6), "block_count"),
        (put("llama.attention.head_count", 0), "head_count"),
        (put("llama.attention.head_count", "four"), "head_count"),
        (put("llama.context_length", -1), "context_length"),
        (drop("token_embd.weight"), "token_embd.weight"),
        (drop("blk.1.ffn_down.weight"), "blk.1.ffn_down.weight"),
        (narrow, "blk.0.attn_q.weight"),
        (drop("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens"),
        (put("tokenizer.ggml.model", "novel"), "novel"),
        (put("tokenizer.ggml.pre", "novel"), "novel"),
        (put("tokenizer.ggml.eos_token_id", 10**6), "eos"),
        (put("tokenizer.chat_template", 5), "tokenizer.chat_template"),
        (put("tokenizer.chat_template", "{% if %}"), "chat template, line 1"),
    ],
)
def test_a_file_that_is_no_model(change: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    model = TinyModel()
    tensors = {
        info.gguf: NewTensor(info.gguf, BY_NAME[tensor.dtype], tensor.shape, tensor.data)
        for info, tensor in zip(model.infos, model.tensors, strict=True)
    }
    metadata = dict(model.metadata)
    change(metadata, tensors)
    write_gguf(path, metadata, list(tensors.values()))
    done = spola("run", "-m", str(path), *NULL, "hi")
    check(done, path)
    assert said in done.stderr
