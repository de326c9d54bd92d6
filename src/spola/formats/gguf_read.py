"""Reading one GGUF file's header: metadata and the table of tensors, every number checked.

Hand-written against the GGUF specification, versions 2 and 3, little-endian. Reads no tensor data, joins no
split files and gives no meaning to any key but ``general.alignment``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from spola.core.dtype import BY_GGUF_ID, KNOWN_UNSUPPORTED, nbytes
from spola.core.errors import ModelError
from spola.formats.files import RegularFile, file_error, quoted
from spola.formats.gguf_cursor import Cursor
from spola.formats.gguf_types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_KEY,
    MAX_KEYS,
    MAX_NAME,
    MAX_STRING,
    MAX_TENSORS,
    VERSIONS,
    FieldType,
    ValueType,
    align_up,
)
from spola.formats.tensors import TensorEntry, UnsupportedTensor, unsupported_error

__all__ = ["Header", "read_header"]

_SMALLEST_PAIR = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8
_LOOKALIKES = (
    (b"FUGG", "begins with FUGG, GGUF reversed: big-endian or corrupted; spola reads little-endian"),
    (b"GGML", "is in the old GGML format; convert the model to GGUF again"),
    (b"lmgg", "is in the old GGML format; convert the model to GGUF again"),
    (b"tjgg", "is in the old GGJT format; convert the model to GGUF again"),
    (b"PK\x03\x04", "is a zip archive (perhaps a PyTorch checkpoint), not GGUF"),
    (b"vers", "seems to be a Git LFS pointer, not the model; fetch it with `git lfs pull`"),
    (b"<", "seems to be a web page or XML, not the model; download it again"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """What one GGUF file says of itself; ``types`` tells how each metadata value is stored.

    ``digest`` is a hash of the bytes of the header (and at most a few megabytes after it).
    """

    version: int
    alignment: int
    metadata: dict[str, Any]
    types: dict[str, FieldType]
    tensors: dict[str, TensorEntry]
    unsupported: dict[str, UnsupportedTensor]
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Info:
    """A row of the tensor table as stored; ``offset`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def read_header(file: RegularFile, *, allow_unsupported: bool = False) -> Header:
    """Read and check the header of ``file``.

    Raises ModelError for anything malformed, and for a tensor of a type that spola cannot decode unless
    ``allow_unsupported``, which lists such tensors apart.
    """
    cursor = Cursor(file)
    version = _preamble(cursor)
    cursor.where = "tensor count"
    n_tensors = _count(cursor, _SMALLEST_TENSOR, MAX_TENSORS)
    cursor.where = "metadata count"
    n_keys = _count(cursor, _SMALLEST_PAIR, MAX_KEYS)
    metadata, types = _metadata(cursor, n_keys)
    alignment = _alignment(file.path, metadata, types)
    infos = _infos(cursor, n_tensors)
    data_start = align_up(cursor.offset, alignment)
    tensors, unsupported = _place(file, infos, data_start, alignment)
    if unsupported and not allow_unsupported:
        raise unsupported_error(next(iter(unsupported.values())))
    return Header(version, alignment, metadata, types, tensors, unsupported, cursor.digest.digest())


def _preamble(cursor: Cursor) -> int:
    file = cursor.file
    if file.size == 0:
        raise file_error(file.path, "is empty; download it again")
    start = bytes(file.read(0, min(file.size, 8)))
    if not start.startswith(MAGIC):
        raise _wrong_magic(file.path, start)
    if file.size < 8:
        raise file_error(file.path, f"ends after {file.size} bytes, within the GGUF version")
    cursor.need(8)
    cursor.pos = 8
    version = int.from_bytes(start[4:], "little")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(start[4:], "big")
    if 1 <= swapped <= 0xFFFF:
        raise file_error(
            file.path, f"is a big-endian GGUF file (version {swapped}); spola reads little-endian"
        )
    if version == 1:
        raise file_error(file.path, "has GGUF version 1, which is obsolete; convert the model to GGUF again")
    raise file_error(file.path, f"has GGUF version {version}; spola reads versions 2 and 3")


def _wrong_magic(path: Path, start: bytes) -> ModelError:
    for magic, problem in _LOOKALIKES:
        if start.startswith(magic):
            return file_error(path, problem)
    if MAGIC.startswith(start):
        return file_error(path, f"ends after {len(start)} bytes, within the GGUF magic")
    return file_error(path, f"is not a GGUF file: it begins with {quoted(start[:4])}")


def _count(cursor: Cursor, smallest: int, limit: int) -> int:
    count = cursor.u64()
    if count * smallest > cursor.left:
        raise cursor.fail(f"{count} entries cannot fit into the {cursor.left} bytes left")
    if count > limit:
        raise cursor.fail(f"{count} exceeds the limit of {limit}")
    return count


def _name(cursor: Cursor, limit: int) -> str:
    raw = cursor.raw_string(limit)
    if not raw:
        raise cursor.fail("the name is empty")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise cursor.fail(f"the name {quoted(raw)} is not valid UTF-8") from None


def _metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, FieldType]]:
    metadata: dict[str, Any] = {}
    types: dict[str, FieldType] = {}
    for index in range(count):
        cursor.where = f"metadata key {index + 1} of {count}"
        key = _name(cursor, MAX_KEY)
        if key in metadata:
            raise cursor.fail(f"the key {quoted(key)} appears twice")
        cursor.where = f"metadata {quoted(key)}"
        kind = cursor.value_type()
        if kind is ValueType.ARRAY:
            element, metadata[key] = cursor.array()
            types[key] = FieldType(kind, element)
            continue
        metadata[key] = _text(cursor, key) if kind is ValueType.STRING else cursor.scalar(kind)
        types[key] = FieldType(kind)
    return metadata, types


def _text(cursor: Cursor, key: str) -> str:
    raw = cursor.raw_string(MAX_STRING)
    try:
        # A wrongly encoded description harms nobody; a wrongly encoded template or name would.
        return raw.decode("utf-8", "replace" if key.startswith("general.") else "strict")
    except UnicodeDecodeError as error:
        raise cursor.fail(f"the text is not valid UTF-8 at its byte {error.start}") from None


def _alignment(path: Path, metadata: dict[str, Any], types: dict[str, FieldType]) -> int:
    if ALIGNMENT_KEY not in metadata:
        return DEFAULT_ALIGNMENT
    kind, value = types[ALIGNMENT_KEY].type, metadata[ALIGNMENT_KEY]
    if kind is not ValueType.UINT32:
        raise file_error(path, f"metadata '{ALIGNMENT_KEY}' has type {kind.name}; it must be UINT32")
    if value < 8 or value > MAX_ALIGNMENT or value & (value - 1):
        raise file_error(
            path,
            f"metadata '{ALIGNMENT_KEY}' is {value}; it must be a power of two from 8 to {MAX_ALIGNMENT}",
        )
    return int(value)


def _infos(cursor: Cursor, count: int) -> list[_Info]:
    seen: set[str] = set()
    infos = []
    for index in range(count):
        cursor.where = f"tensor {index + 1} of {count}"
        name = _name(cursor, MAX_NAME)
        cursor.where = f"tensor {quoted(name)}"
        if name in seen:
            raise cursor.fail("the name appears twice in the tensor table")
        seen.add(name)
        infos.append(_Info(name, _shape(cursor), cursor.u32(), cursor.u64()))
    return infos


def _shape(cursor: Cursor) -> tuple[int, ...]:
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"has {n_dims} dimensions; 1 to {MAX_DIMS} are valid")
    dims = [cursor.u64() for _ in range(n_dims)]
    product = 1
    for dim in dims:
        if dim == 0:
            raise cursor.fail(f"has a dimension of zero in {dims}")
        product *= dim
    if product >= 1 << 63:
        raise cursor.fail(f"the dimensions {dims} overflow: their product exceeds 2^63")
    return tuple(reversed(dims))


def _place(
    file: RegularFile,
    infos: list[_Info],
    data_start: int,
    alignment: int,
) -> tuple[dict[str, TensorEntry], dict[str, UnsupportedTensor]]:
    """The tables of tensors with absolute offsets, each checked to lie within the file and on its own."""
    tensors: dict[str, TensorEntry] = {}
    unsupported: dict[str, UnsupportedTensor] = {}
    for info in infos:
        where = f"tensor {quoted(info.name)}"
        if info.offset % alignment:
            raise file_error(file.path, f"{where}: offset {info.offset} is no multiple of {alignment}")
        offset = data_start + info.offset
        dtype = BY_GGUF_ID.get(info.type_id)
        if dtype is None:
            type_name = KNOWN_UNSUPPORTED.get(info.type_id, f"number {info.type_id} (unknown)")
            unsupported[info.name] = UnsupportedTensor(info.name, type_name, info.shape, offset, file.path)
            size = 1
        else:
            if info.shape[-1] % dtype.block:
                problem = f"rows of {info.shape[-1]} are no whole number of {dtype.name} blocks"
                raise file_error(file.path, f"{where}: {problem} of {dtype.block}")
            size = nbytes(dtype, prod(info.shape))
            tensors[info.name] = TensorEntry(info.name, dtype, info.shape, offset, size, file.path)
        if offset + size > file.size:
            problem = f"its data would end at byte {offset + size}, but the file has {file.size} bytes"
            raise file_error(file.path, f"{where}: {problem} (an incomplete download?)")
    _refuse_overlap(file.path, tensors, unsupported)
    return tensors, unsupported


def _refuse_overlap(
    path: Path, tensors: dict[str, TensorEntry], unsupported: dict[str, UnsupportedTensor]
) -> None:
    spans = [(t.offset, t.offset + t.nbytes, t.name) for t in tensors.values()]
    spans += [(t.offset, t.offset + 1, t.name) for t in unsupported.values()]
    spans.sort()
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start < end:
            raise file_error(path, f"the data of tensors {quoted(first)} and {quoted(second)} overlap")
