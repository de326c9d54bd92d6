"""The recorder of decoder calls: values, and the order of arguments."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import tape

from spola import _native
from spola.backends.native import NativeRunner, runner
from support.tiny import Tiny, TinyModel

NO_NORM = (0, -1, -1, 0.0)


def decode(data: bytes, at: int = 0) -> tuple[object, int]:
    """A value as tape.h describes it, and where the next one begins."""
    tag, at = data[at : at + 1], at + 1
    if tag == b"n":
        return None, at
    if tag in b"if":
        return struct.unpack_from("<q" if tag == b"i" else "<d", data, at)[0], at + 8
    (count,), at = struct.unpack_from("<Q", data, at), at + 8
    if tag == b"s":
        return data[at : at + count], at + count
    assert tag == b"t"
    items = []
    for _ in range(count):
        item, at = decode(data, at)
        items.append(item)
    return tuple(items), at


def test_values_come_back() -> None:
    value = (1, -2, True, 0.5, None, "né", b"\0\1", (), (3, (memoryview(b"xy"),)))
    data = tape.encode(value)
    want = (1, -2, 1, 0.5, None, "né".encode(), b"\0\1", (), (3, (b"xy",)))
    assert decode(data) == (want, len(data))
    assert decode(tape.encode(2**64 - 1))[0] == -1
    with pytest.raises(TypeError, match="object"):
        tape.encode(object())


def test_arguments_are_put_in_the_order_of_the_declaration() -> None:
    order = tape.positional(
        _native.Decoder.linear, ([(0, -1, 0)], 1), {"width": 8, "multiplier": 2.0, "epilogue": 0}
    )
    assert order[:7] == ([(0, -1, 0)], 1, 8, 0, 2.0, 0.0, 0.0)
    head = {"softcap": 1.0, "scale": 2.0, "bias": -1, "matrix": 3, "norm": NO_NORM}
    assert tape.positional(_native.Decoder.head, (), head) == (NO_NORM, 3, -1, 2.0, 1.0)


def test_a_recording_holds_every_call_in_order(tmp_path: Path) -> None:
    model = TinyModel(Tiny(seed=3, layers=1))
    recorded = NativeRunner()
    with tape.recording(tmp_path / "tape"):
        recorded.load(model.spec, model, model.config(blocks=4))
        with pytest.raises(NotImplementedError, match="hold"):
            recorded.hold(1, b"")
    assert runner._native is _native
    data = (tmp_path / "tape").read_bytes()
    assert data.startswith(tape.MAGIC)
    calls, at = [], len(tape.MAGIC)
    while at < len(data):
        call, at = decode(data, at)
        calls.append(call)
    names = [name.decode() for name, _, _ in calls]
    assert (names[0], names[-1]) == ("Decoder", "finish")
    assert {"add_matrix", "add_vector", "add_kv_group", "linear", "attention", "head"} <= set(names)
    added = [(arguments, result) for name, arguments, result in calls if name == b"add_matrix"]
    assert [result for _, result in added] == list(range(len(added)))
    tensors = {tensor.name.encode(): bytes(tensor.data) for tensor in model}
    assert all(tensors[arguments[0]] == arguments[4] for arguments, _ in added)
