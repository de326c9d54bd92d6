"""Writing GGUF version 3: all metadata types, tensors as raw bytes, one file or split.

Tensor data is streamed: the table is written from names, types and shapes, then each tensor's bytes are
asked for in turn, so a model larger than memory can be written. A file appears under its name only when it is
complete. Does not encode blocks. Wrong arguments are the caller's mistake and raise ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import error as StructError
from struct import pack
from typing import Any, BinaryIO

from spola.core.dtype import BY_GGUF_ID
from spola.formats.gguf_split import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, shard_path
from spola.formats.gguf_types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    SCALARS,
    FieldType,
    ValueType,
    align_up,
)
from spola.formats.output import NewTensor, check_tensors, complete_file, write_data

__all__ = ["NewTensor", "infer_type", "write_gguf", "write_split_gguf"]

_STRING = FieldType(ValueType.STRING)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[NewTensor],
    *,
    types: Mapping[str, FieldType] | None = None,
) -> None:
    """Write one GGUF file at ``path``.

    ``metadata`` values are stored as ``infer_type`` says unless ``types`` has the key; ``types`` of an open
    ``GgufFile`` reproduces that file's. Tensor data are aligned to ``general.alignment``, 32 without it.
    Raises ValueError for values that do not fit their type and data that do not fit their shape.
    """
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    _check(tensors, alignment)
    with complete_file(path) as out:
        _write(out, metadata, types or {}, tensors, alignment)


def write_split_gguf(
    folder: Path,
    prefix: str,
    metadata: Mapping[str, Any],
    shards: Sequence[Sequence[NewTensor]],
    *,
    types: Mapping[str, FieldType] | None = None,
) -> list[Path]:
    """Write one file per element of ``shards`` into ``folder`` and give their paths.

    The first holds ``metadata``; all hold the alignment and the keys of the split.
    """
    total = sum(len(shard) for shard in shards)
    count = len(shards)
    names = {tensor.name for shard in shards for tensor in shard}
    if count < 1 or len(names) != total:
        raise ValueError("a split model needs at least one shard, and each tensor in one shard only")
    kinds = dict(types or {}) | {
        SPLIT_NO: FieldType(ValueType.UINT16),
        SPLIT_COUNT: FieldType(ValueType.UINT16),
        SPLIT_TENSORS: FieldType(ValueType.INT32),
    }
    paths = []
    for index, tensors in enumerate(shards):
        split = {SPLIT_NO: index, SPLIT_COUNT: count, SPLIT_TENSORS: total}
        kept = metadata if index == 0 else {k: metadata[k] for k in metadata if k == ALIGNMENT_KEY}
        path = shard_path(folder, prefix, index, count)
        write_gguf(path, {**kept, **split}, tensors, types=kinds)
        paths.append(path)
    return paths


def infer_type(value: Any) -> FieldType:
    """How a Python value is stored when nobody says otherwise.

    bool, str and list as themselves, float as FLOAT32, int as UINT32 if it fits (inside a list INT32), else
    as INT32, INT64 or UINT64. ValueError for an empty list and for anything else.
    """
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("an empty list needs an explicit type")
        return FieldType(ValueType.ARRAY, _element_type(value))
    if isinstance(value, bool):
        return FieldType(ValueType.BOOL)
    if isinstance(value, int):
        return FieldType(_integer_type(value, value, (ValueType.UINT32, ValueType.INT32)))
    if isinstance(value, float):
        return FieldType(ValueType.FLOAT32)
    if isinstance(value, str | bytes):
        return _STRING
    raise ValueError(f"a {type(value).__name__} cannot be stored in GGUF metadata")


def _element_type(values: Sequence[Any]) -> FieldType:
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return FieldType(_integer_type(min(values), max(values), (ValueType.INT32, ValueType.UINT32)))
    kinds = {infer_type(v) for v in values}
    if len(kinds) > 1:
        raise ValueError(f"a list mixes {sorted(kind.type.name for kind in kinds)}")
    return kinds.pop()


def _integer_type(low: int, high: int, preferred: tuple[ValueType, ...]) -> ValueType:
    bounds = {
        ValueType.UINT32: (0, 2**32 - 1),
        ValueType.INT32: (-(2**31), 2**31 - 1),
        ValueType.INT64: (-(2**63), 2**63 - 1),
        ValueType.UINT64: (0, 2**64 - 1),
    }
    for kind in (*preferred, ValueType.INT64, ValueType.UINT64):
        if bounds[kind][0] <= low and high <= bounds[kind][1]:
            return kind
    raise ValueError(f"integers from {low} to {high} do not fit into 64 bits")


def _check(tensors: Sequence[NewTensor], alignment: int) -> None:
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two from 8 to {MAX_ALIGNMENT}")
    check_tensors(tensors)
    for tensor in tensors:
        if tensor.dtype.gguf_id not in BY_GGUF_ID:
            raise ValueError(f"tensor {tensor.name}: GGUF has no type {tensor.dtype.name}")
    for tensor in tensors:
        if not 1 <= len(tensor.shape) <= MAX_DIMS or min(tensor.shape) < 1:
            raise ValueError(f"tensor {tensor.name} has the shape {tensor.shape}")


def _write(
    out: BinaryIO,
    metadata: Mapping[str, Any],
    types: Mapping[str, FieldType],
    tensors: Sequence[NewTensor],
    alignment: int,
) -> None:
    out.write(MAGIC + pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        kind = types.get(key) or infer_type(value)
        try:
            encoded = b"".join(_encode(value, kind))
        except (StructError, OverflowError, TypeError, AttributeError) as error:
            raise ValueError(f"metadata {key!r} does not fit its type {kind}: {error}") from error
        out.write(_string(key) + pack("<I", kind.type) + encoded)
    offset = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))
        out.write(_string(tensor.name) + pack(f"<I{len(dims)}Q", len(dims), *dims))
        out.write(pack("<IQ", tensor.dtype.gguf_id, offset))
        offset = align_up(offset + tensor.nbytes, alignment)
    for tensor in tensors:
        _pad(out, alignment)
        write_data(out, tensor)
    _pad(out, alignment)


def _pad(out: BinaryIO, alignment: int) -> None:
    at = out.tell()
    out.write(bytes(align_up(at, alignment) - at))


def _string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return pack("<Q", len(raw)) + raw


def _encode(value: Any, kind: FieldType) -> Iterator[bytes]:
    if kind.type is ValueType.STRING:
        yield _string(value)
    elif kind.type is ValueType.ARRAY:
        yield from _encode_array(value, kind.element)
    elif kind.type is ValueType.BOOL:
        yield b"\x01" if value else b"\x00"
    else:
        yield SCALARS[kind.type].pack(value)


def _encode_array(values: Sequence[Any], element: FieldType | None) -> Iterator[bytes]:
    """Element type, count and elements; without ``element`` (an empty nested array) as bytes."""
    kind = element or FieldType(ValueType.UINT8)
    yield pack("<IQ", kind.type, len(values))
    for value in values:
        yield from _encode(value, kind)
