"""safetensors files: exchanged with the safetensors package, and malformed ones refused by what is wrong."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.formats.output import NewTensor
from spola.formats.safetensors import open_safetensors, write_safetensors
from support.blocks import encode


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "model.half": rng.normal(size=(3, 5)).astype(np.float16),
        "model.full": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "scalar": np.array(2.5, dtype=np.float32),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "naïve 🐚": np.arange(3, dtype=np.float32),
    }


def _new(arrays: dict[str, np.ndarray]) -> list[NewTensor]:
    names = {"float16": "F16", "float32": "F32"}
    return [
        NewTensor(key, BY_NAME[names[str(value.dtype)]], value.shape, value.tobytes())
        for key, value in arrays.items()
    ]


def _raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _row(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_the_package_reads_what_spola_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, _new(_tensors()), {"format": "np"})
    theirs = safetensors.numpy.load_file(path)
    assert theirs.keys() == _tensors().keys()
    for name, value in _tensors().items():
        assert theirs[name].dtype == value.dtype
        assert np.array_equal(theirs[name], value)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "np"}


def test_spola_reads_what_the_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(_tensors(), path, {"format": "np"})
    with open_safetensors(path) as model:
        assert model.metadata == {"format": "np"}
        assert model.tensors.keys() == _tensors().keys()
        for name, value in _tensors().items():
            entry = model.tensors[name]
            assert (entry.shape, entry.nbytes) == (value.shape, value.nbytes)
            assert bytes(model.read(name)) == value.tobytes()
        assert bytes(model.read_range("model.full", 8, 16)) == _tensors()["model.full"].tobytes()[8:24]


def test_bf16_goes_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = encode("BF16", np.linspace(-3, 3, 12))
    write_safetensors(path, [NewTensor("w", BY_NAME["BF16"], (3, 4), data)])
    with safetensors.safe_open(path, "np") as file:
        assert file.get_slice("w").get_dtype() == "BF16"
    with open_safetensors(path) as model:
        assert (model.tensors["w"].dtype.name, model.tensors["w"].shape) == ("BF16", (3, 4))
        assert model.read("w") == data


def test_other_types_are_listed_and_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {"mask": np.ones(4, dtype=bool), "ids": np.arange(3), "w": np.zeros(2, dtype=np.float32)}
    safetensors.numpy.save_file(arrays, path)
    with open_safetensors(path) as model:
        assert list(model.tensors) == ["w"]
        assert {name: t.type_name for name, t in model.unsupported.items()} == {"mask": "BOOL", "ids": "I64"}
        with pytest.raises(ModelError, match="tensor 'ids' has type I64, which spola does not support"):
            model.read("ids")
        with pytest.raises(ModelError, match="has no tensor 'none'"):
            model.entry("none")


def test_data_start_aligned(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    odd = np.zeros(3, dtype=np.float16)
    write_safetensors(path, _new({"a": odd, "b": np.zeros(2, dtype=np.float32)}))
    with open_safetensors(path) as model:
        assert model.tensors["b"].offset % 8 == 0
        assert list(model.tensors) == ["b", "a"]


def test_an_empty_file_of_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [])
    with open_safetensors(path) as model:
        assert model.tensors == {}


GOOD = {"w": _row()}
DATA = bytes(8)
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has only 0 bytes"),
    "seven bytes": (bytes(7), "has only 7 bytes"),
    "GGUF": (b"GGUF\3\0\0\0" + bytes(16), "is a GGUF file"),
    "length 2^63": (_raw(GOOD, DATA, 1 << 63), "a header of 9223372036854775808 bytes cannot fit"),
    "length 2^64 - 1": (_raw(GOOD, DATA, 2**64 - 1), "a header of 1844"),
    "length past the end": (_raw(GOOD, DATA, 90), "cannot fit into its"),
    "length 0": (_raw(b"", DATA), "begins with ''"),
    "list": (_raw([1, 2], DATA), "begins with '.1, '"),
    "cut JSON": (_raw(GOOD, DATA, 20), "its header: .*truncated"),
    "junk after JSON": (_raw(b'{"w":1}x'), "its header: JSON is malformed"),
    "not UTF-8": (_raw(b'{"\xff":1}'), "its header: Invalid UTF-8"),
    "nested": (_raw(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "its header: .*recursion"),
    "row is text": (_raw({"w": "F32"}), "tensor 'w': Expected `object`, got `str`"),
    "row without dtype": (_raw({"w": {"shape": [2], "data_offsets": [0, 8]}}, DATA), "'w': .*`dtype`"),
    "row without offsets": (_raw({"w": {"shape": [2], "dtype": "F32"}}, DATA), "'w': .*`data_offsets`"),
    "shape of text": (_raw({"w": _row(shape="2")}, DATA), "'w': Expected `int`, got `str`"),
    "shape of fractions": (_raw({"w": _row(shape=(1.5,))}, DATA), "'w': Expected `int`, got `float`"),
    "three offsets": (_raw({"w": _row(offsets=(0, 4, 8))}, DATA), "'w': .*length 2"),
    "metadata of numbers": (_raw({"__metadata__": {"a": 1}}), "__metadata__: Expected `str`, got `int`"),
    "unknown type": (_raw({"w": _row("F31")}, DATA), "'w': the type 'F31' is unknown"),
    "negative dim": (_raw({"w": _row(shape=(-1, -2))}, DATA), "'w': the shape .* is not valid"),
    "overflow": (_raw({"w": _row(shape=(1 << 33, 1 << 33))}, DATA), "'w': the shape .* overflows"),
    "nine dims": (_raw({"w": _row(shape=(1,) * 9)}, DATA), "'w': the shape .* is not valid"),
    "offsets reversed": (_raw({"w": _row(offsets=(8, 0))}, DATA), "'w': the offsets 8 and 0"),
    "negative offset": (_raw({"w": _row(offsets=(-8, 0))}, DATA), "'w': the offsets -8 and 0"),
    "size too small": (_raw({"w": _row(shape=(3,))}, DATA), "'w': 8 bytes are not the 12 of F32"),
    "size too large": (_raw({"w": _row(shape=(1,))}, DATA), "'w': 8 bytes are not the 4 of F32"),
    "half a byte": (_raw({"w": _row("F4", (3,), (0, 1))}, b"\0"), "no whole bytes"),
    "data cut": (_raw(GOOD, DATA[:7]), "'w': its data would end at byte .* incomplete download"),
    "offset past the end": (_raw({"w": _row(offsets=(1 << 62, (1 << 62) + 8))}, DATA), "'w': its data would"),
    "overlap": (_raw({"a": _row(), "b": _row(offsets=(4, 12))}, bytes(12)), "'a' and 'b' overlap"),
    "same place": (_raw({"a": _row(), "b": _row()}, DATA), "'a' and 'b' overlap"),
    "hole": (_raw({"a": _row(), "b": _row(offsets=(12, 20))}, bytes(20)), "belong to no tensor"),
    "hole at the start": (_raw({"w": _row(offsets=(4, 12))}, bytes(12)), "belong to no tensor"),
    "trailing bytes": (_raw(GOOD, DATA + b"x"), "belong to no tensor"),
    "name twice": (
        _raw(b'{"w":%s,"w":%s}' % ((json.dumps(_row()).encode(),) * 2), DATA),
        "the key 'w' twice",
    ),
    "field twice": (
        _raw(b'{"w":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,4]}}', DATA),
        "the key 'dtype' twice",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(tmp_path: Path, name: str) -> None:
    data, match = MALFORMED[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ModelError, match=match) as caught:
        open_safetensors(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, _new({"a": np.ones(4, dtype=np.float32)}))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            open_safetensors(path)


def test_a_huge_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((1 << 30).to_bytes(8, "little") + b"{")
        file.truncate(2 << 30)
    with pytest.raises(ModelError, match="exceeds the limit of 16777216"):
        open_safetensors(path)


@pytest.mark.parametrize(
    "tensor",
    [
        NewTensor("w", BY_NAME["Q8_0"], (1, 32), bytes(34)),
        NewTensor("w", BY_NAME["F32"], (2,), bytes(7)),
        NewTensor("__metadata__", BY_NAME["F32"], (1,), bytes(4)),
    ],
)
def test_the_writer_refuses(tmp_path: Path, tensor: NewTensor) -> None:
    with pytest.raises(ValueError):
        write_safetensors(tmp_path / "x.safetensors", [tensor])
    assert list(tmp_path.iterdir()) == []
