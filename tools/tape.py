"""Record what Python asks of the native decoder, for ``spola_replay`` to repeat on another machine.

A tape holds every call that builds the decoder, with the tensors as they lie in the model file, every step,
and what came of it. The format is described in native/replay/tape.h. A call of ``hold`` (distributions of
drafts) or ``poison`` is refused, as the other side has no part for it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from spola import _native
from spola.backends.native import runner

MAGIC = b"spola tape 1\n"
UNRECORDED = ("hold", "poison")
SILENT = ("memory", "counters", "isa", "time_ops", "op_times")  # they ask, and change nothing


def encode(value: Any) -> bytes:
    """``value`` as native/replay/tape.h reads it. Raises TypeError on what has no form there."""
    if value is None:
        return b"n"
    if isinstance(value, int):
        return b"i" + struct.pack("<Q", value & (2**64 - 1))
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return b"s" + struct.pack("<Q", len(data)) + data
    if isinstance(value, (tuple, list)):
        return b"t" + struct.pack("<Q", len(value)) + b"".join(map(encode, value))
    try:
        data = bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"a tape has no form for {type(value).__name__}") from None
    return b"s" + struct.pack("<Q", len(data)) + data


def positional(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call in the order that the extension declares them, defaults filled in."""
    ((signature, _, defaults),) = method.__nb_signature__
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    names = re.findall(r"(\w+): [^=]*?(?:= \\(\d+))?(?=, \w+: |$)", inside)
    out = list(args)
    for name, default in names[len(args) :]:
        out.append(kwargs[name] if name in kwargs else defaults[int(default)])
    return tuple(out)


class Tape:
    """A decoder that writes down what it is asked."""

    def __init__(self, file: BinaryIO, **config: Any) -> None:
        self._file = file
        self._decoder = _native.Decoder(**config)
        self._write("Decoder", positional(_native.Decoder.__init__, (), config), None)

    def _write(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        self._file.write(encode((name, arguments, result)))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._decoder, name)
        if name in SILENT:
            return found
        if name in UNRECORDED:
            raise NotImplementedError(f"{name} is not recorded")

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            self._write(name, positional(getattr(_native.Decoder, name), args, kwargs), result)
            return result

        return call


class _Recording:
    """Stands for the extension module in the runner."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def Decoder(self, **config: Any) -> Tape:
        return Tape(self._file, **config)

    def __getattr__(self, name: str) -> Any:
        return getattr(_native, name)


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Decoders that are made meanwhile write themselves to ``path``: one, as a tape holds one."""
    with path.open("wb") as file:
        file.write(MAGIC)
        real = runner._native
        runner._native = _Recording(file)  # type: ignore[assignment]
        try:
            yield
        finally:
            runner._native = real
