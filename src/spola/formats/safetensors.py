"""Reading and writing one safetensors file: a JSON header, then the tensors' bytes without gaps.

Follows the format as the safetensors repository describes it; every offset is checked against the file. Reads
F32, F16 and BF16; tensors of other types are listed and refused when asked for, since checkpoints carry
masks and position ids that no one needs. Sharded checkpoints and their index are not joined here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from spola.core.dtype import BY_NAME, nbytes
from spola.core.errors import ModelError
from spola.formats.files import RegularFile, file_error, quoted
from spola.formats.output import NewTensor, check_tensors, complete_file, write_data
from spola.formats.tensors import TensorEntry, TensorSource, UnsupportedTensor

__all__ = ["MAX_HEADER", "SafetensorsFile", "open_safetensors", "write_safetensors"]

# The format allows 100 MB; the largest checkpoints have headers of a few megabytes per file, and JSON in
# memory is several times its text.
MAX_HEADER = 16 << 20
_MAX_DIMS = 8
_METADATA = "__metadata__"
# Bits per element of the format's types that spola does not decode.
_OTHER_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "I32": 32,
    "U32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_OURS = ("F32", "F16", "BF16")


class _Row(msgspec.Struct):
    """A tensor as the header describes it; offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ROW = msgspec.json.Decoder(_Row)
_TEXTS = msgspec.json.Decoder(dict[str, str])


class SafetensorsFile(TensorSource):
    """An open safetensors file. ``metadata``: the texts of ``__metadata__``, empty when there is none."""

    def __init__(
        self,
        file: RegularFile,
        metadata: dict[str, str],
        tensors: dict[str, TensorEntry],
        unsupported: dict[str, UnsupportedTensor],
    ) -> None:
        super().__init__([file], tensors, unsupported)
        self.metadata = metadata


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open ``path``; ModelError for anything missing or malformed."""
    file = RegularFile(Path(path))
    try:
        return _parse(file)
    except BaseException:
        file.close()
        raise


def _parse(file: RegularFile) -> SafetensorsFile:
    header = _read_header(file)
    data_start = 8 + len(header)
    rows, metadata = _decode(file.path, header)
    tensors: dict[str, TensorEntry] = {}
    unsupported: dict[str, UnsupportedTensor] = {}
    for name, row in rows.items():
        size = _size(file.path, name, row)
        _check_offsets(file, data_start, name, row, size)
        offset = data_start + row.data_offsets[0]
        shape = tuple(row.shape)
        if row.dtype in _OURS:
            tensors[name] = TensorEntry(name, BY_NAME[row.dtype], shape, offset, size, file.path)
        else:
            unsupported[name] = UnsupportedTensor(name, row.dtype, shape, offset, file.path)
    _check_cover(file, data_start, rows)
    return SafetensorsFile(file, metadata, tensors, unsupported)


def _read_header(file: RegularFile) -> bytearray:
    if file.size < 8:
        raise file_error(file.path, f"is no safetensors file: it has only {file.size} bytes")
    start = file.read(0, 8)
    length = int.from_bytes(start, "little")
    if start.startswith(b"GGUF"):
        raise file_error(file.path, "is a GGUF file, not safetensors; rename it to end in .gguf")
    if length > file.size - 8:
        problem = f"a header of {length} bytes cannot fit into its {file.size} bytes"
        raise file_error(file.path, f"{problem} (an incomplete download, or no safetensors file?)")
    if length > MAX_HEADER:
        raise file_error(file.path, f"a header of {length} bytes exceeds the limit of {MAX_HEADER}")
    header = file.read(8, length)
    if not header.startswith(b"{"):
        raise file_error(file.path, f"its header begins with {quoted(bytes(header[:4]))}, not with '{{'")
    return header


def _decode(path: Path, header: bytearray) -> tuple[dict[str, _Row], dict[str, str]]:
    where = "its header"
    try:
        table = _TABLE.decode(header)
        where = f"its header, {_METADATA}"
        metadata = _TEXTS.decode(table.pop(_METADATA, b"{}"))
        rows = {}
        for name, raw in table.items():
            where = f"its header, tensor {quoted(name)}"
            rows[name] = _ROW.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise file_error(path, f"{where}: {quoted(str(error), 200)[1:-1]}") from error
    _refuse_repeated(path, header)
    return rows, metadata


def _refuse_repeated(path: Path, header: bytearray) -> None:
    # msgspec keeps the last of equal keys, and which one a reader takes would decide what the model is.
    def pairs(items: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                raise file_error(path, f"its header has the key {quoted(key)} twice")
            seen.add(key)

    try:
        json.loads(header, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise file_error(path, f"its header: {quoted(str(error), 200)[1:-1]}") from error


def _size(path: Path, name: str, row: _Row) -> int:
    """Bytes of the tensor by its type and shape."""
    where = f"tensor {quoted(name)}"
    if len(row.shape) > _MAX_DIMS or any(dim < 0 for dim in row.shape):
        raise file_error(path, f"{where}: the shape {quoted(str(row.shape))} is not valid")
    elements = prod(row.shape)
    if elements >= 1 << 63:
        raise file_error(path, f"{where}: the shape {quoted(str(row.shape))} overflows")
    if row.dtype in _OURS:
        return nbytes(BY_NAME[row.dtype], elements)
    bits = _OTHER_BITS.get(row.dtype)
    if bits is None:
        raise file_error(path, f"{where}: the type {quoted(row.dtype)} is unknown")
    if elements * bits % 8:
        raise file_error(path, f"{where}: {elements} elements of {row.dtype} are no whole bytes")
    return elements * bits // 8


def _check_offsets(file: RegularFile, data_start: int, name: str, row: _Row, size: int) -> None:
    begin, end = row.data_offsets
    where = f"tensor {quoted(name)}"
    if begin < 0 or end < begin:
        raise file_error(file.path, f"{where}: the offsets {begin} and {end} are not valid")
    if end - begin != size:
        problem = f"{end - begin} bytes are not the {size} of {row.dtype} {row.shape}"
        raise file_error(file.path, f"{where}: {problem}")
    if data_start + end > file.size:
        problem = f"its data would end at byte {data_start + end}, but the file has {file.size} bytes"
        raise file_error(file.path, f"{where}: {problem} (an incomplete download?)")


def _check_cover(file: RegularFile, data_start: int, rows: dict[str, _Row]) -> None:
    """The format forbids overlaps and holes, so that nothing can hide in a file."""
    spans = sorted((*row.data_offsets, name) for name, row in rows.items())
    edges = [(0, 0, ""), *spans, (file.size - data_start, file.size - data_start, "")]
    for (_, end, first), (begin, _, second) in pairwise(edges):
        if begin < end:
            raise _overlap(file.path, first, second)
        if begin > end:
            problem = f"the bytes {data_start + end} to {data_start + begin} belong to no tensor"
            raise file_error(file.path, problem)


def _overlap(path: Path, first: str, second: str) -> ModelError:
    return file_error(path, f"the data of tensors {quoted(first)} and {quoted(second)} overlap")


def write_safetensors(
    path: Path, tensors: Sequence[NewTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write ``tensors`` (F32, F16 or BF16, wide ones first, so that each is aligned) and ``metadata``.

    Raises ValueError for other types, repeated names, and data that do not fit their shape.
    """
    check_tensors(tensors)
    for tensor in tensors:
        if tensor.dtype.name not in _OURS or tensor.name == _METADATA:
            raise ValueError(f"tensor {tensor.name} of type {tensor.dtype.name} does not go into safetensors")
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.block_bytes)
    table: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for tensor in ordered:
        end = offset + tensor.nbytes
        table[tensor.name] = _Row(tensor.dtype.name, list(tensor.shape), (offset, end))
        offset = end
    header = msgspec.json.encode(table)
    header += b" " * (-len(header) % 8)
    with complete_file(path) as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for tensor in ordered:
            write_data(out, tensor)
