"""Byte-level GGUF pieces for files that the product's writer refuses to produce.

Independent of ``spola.formats.gguf_write``: what is wrong in a test file is wrong on purpose, byte by byte.
"""

from __future__ import annotations

from struct import pack

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"}
_CODES |= {U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string with its true or a false length."""
    raw = value.encode() if isinstance(value, str) else value
    return pack("<Q", len(raw) if length is None else length) + raw


def scalar(kind: int, value: int | float) -> bytes:
    return pack("<" + _CODES[kind], value)


def array(kind: int, payload: bytes, count: int) -> bytes:
    return pack("<IQ", kind, count) + payload


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """One metadata entry."""
    return text(key) + pack("<I", kind) + payload


def info(
    name: str | bytes, dims: tuple[int, ...], type_id: int = 0, offset: int = 0, n_dims: int = -1
) -> bytes:
    """One row of the tensor table; ``dims`` innermost first, as on disk."""
    count = len(dims) if n_dims < 0 else n_dims
    return text(name) + pack(f"<I{len(dims)}Q", count, *dims) + pack("<IQ", type_id, offset)


def gguf(
    pairs: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; counts are the true ones unless given."""
    head = magic + pack("<I", version)
    head += pack("<Q", len(infos) if n_tensors is None else n_tensors)
    head += pack("<Q", len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data
