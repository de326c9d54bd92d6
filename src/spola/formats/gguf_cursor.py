"""A bounds-checked cursor over the header of a GGUF file: numbers, strings and arrays of them.

The header is read in chunks as far as it is needed. No number from the file is used as a size before it
was compared with the bytes that are left in the file. Knows nothing of keys and tensors.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any

from spola.core.errors import ModelError
from spola.formats.files import RegularFile, file_error
from spola.formats.gguf_types import (
    MAX_ELEMENTS,
    MAX_HEADER,
    MAX_NESTING,
    MAX_STRING,
    SCALARS,
    FieldType,
    ValueType,
)

__all__ = ["Cursor"]

_CHUNK = 4 << 20
_U32 = Struct("<I")
_U64 = Struct("<Q")
_ARRAY_HEAD = Struct("<IQ")
_CODES: dict[ValueType, Any] = {kind: code.format[1:] for kind, code in SCALARS.items()}
_SMALLEST = {**{kind: code.size for kind, code in SCALARS.items()}, ValueType.STRING: 8, ValueType.ARRAY: 12}


class Cursor:
    """A position in ``file``; ``data`` holds the part of it around there, ``pos`` counts within ``data``.

    ``where`` says in words what is being read; every ModelError raised here carries it. ``digest`` runs
    over all bytes that were loaded.
    """

    __slots__ = ("_base", "data", "digest", "elements_left", "file", "pos", "where")

    def __init__(self, file: RegularFile) -> None:
        self.file = file
        self.data = bytearray()
        self.pos = 0
        self._base = 0
        self.where = "the header"
        self.elements_left = MAX_ELEMENTS
        self.digest = blake2b(digest_size=16)

    def fail(self, problem: str) -> ModelError:
        return file_error(self.file.path, f"{self.where}: {problem}")

    @property
    def offset(self) -> int:
        """The position in the file."""
        return self._base + self.pos

    @property
    def left(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.file.size - self.offset

    def need(self, count: int) -> None:
        """Have the next ``count`` bytes in ``data``, which may move ``pos``.

        ModelError when the file or the limit of a header ends before.
        """
        if self.pos + count <= len(self.data):
            return
        if count > self.left:
            raise self.fail(f"the file ends at byte {self.file.size}, {count - self.left} bytes too early")
        if self.offset + count > MAX_HEADER:
            raise self.fail(f"the header is longer than the limit of {MAX_HEADER} bytes")
        del self.data[: self.pos]
        self._base += self.pos
        self.pos = 0
        start = self._base + len(self.data)
        stop = min(self.file.size, max(self._base + count, start + _CHUNK))
        fresh = self.file.read(start, stop - start)
        self.digest.update(fresh)
        self.data += fresh

    def number(self, code: Struct) -> Any:
        self.need(code.size)
        (value,) = code.unpack_from(self.data, self.pos)
        self.pos += code.size
        return value

    def u32(self) -> int:
        return int(self.number(_U32))

    def u64(self) -> int:
        return int(self.number(_U64))

    def raw_string(self, limit: int) -> bytes:
        """The bytes of one string of at most ``limit`` bytes."""
        length = self.u64()
        self._check_string(length, limit)
        self.need(length)
        end = self.pos + length
        text = bytes(self.data[self.pos : end])
        self.pos = end
        return text

    def _check_string(self, length: int, limit: int) -> None:
        if length > self.left:
            raise self.fail(f"a string of {length} bytes cannot fit into the {self.left} bytes left")
        if length > limit:
            raise self.fail(f"a string of {length} bytes exceeds the limit of {limit}")

    def value_type(self) -> ValueType:
        number = self.u32()
        try:
            return ValueType(number)
        except ValueError:
            raise self.fail(f"unknown value type {number}") from None

    def scalar(self, kind: ValueType) -> Any:
        value = self.number(SCALARS[kind])
        return self._bools([value])[0] if kind is ValueType.BOOL else value

    def array(self, depth: int = 1) -> tuple[FieldType, list[Any]]:
        """One array: its element type and values; strings keep bytes that are not UTF-8 as surrogates."""
        if depth > MAX_NESTING:
            raise self.fail(f"arrays are nested more than {MAX_NESTING} deep")
        self.need(_ARRAY_HEAD.size)
        kind = self.value_type()
        count = self.u64()
        smallest = _SMALLEST[kind]
        if count * smallest > self.left:
            raise self.fail(f"an array of {count} elements cannot fit into the {self.left} bytes left")
        if count > self.elements_left:
            raise self.fail(f"arrays of more than {MAX_ELEMENTS} elements in all exceed the limit")
        self.elements_left -= count
        if kind is ValueType.STRING:
            return FieldType(kind), self._strings(count)
        if kind is ValueType.ARRAY:
            return self._arrays(count, depth)
        self.need(count * smallest)
        end = self.pos + count * smallest
        with memoryview(self.data) as whole, whole[self.pos : end] as part, part.cast(_CODES[kind]) as view:
            values: list[Any] = view.tolist()
        self.pos = end
        return FieldType(kind), self._bools(values) if kind is ValueType.BOOL else values

    def _bools(self, values: list[int]) -> list[bool]:
        bad = next((value for value in values if value > 1), None)
        if bad is not None:
            raise self.fail(f"a boolean is stored as {bad}; only 0 and 1 are valid")
        return [value == 1 for value in values]

    def _strings(self, count: int) -> list[str]:
        # The hot loop of opening a model: a vocabulary has up to half a million strings.
        data, pos, have = self.data, self.pos, len(self.data)
        unpack = _U64.unpack_from
        values: list[str] = []
        append = values.append
        for _ in range(count):
            if pos + 8 > have:
                self.pos = pos
                self.need(8)
                pos, have = self.pos, len(data)
            (length,) = unpack(data, pos)
            pos += 8
            end = pos + length
            if end > have:
                self.pos = pos
                self._check_string(length, MAX_STRING)
                self.need(length)
                pos, have = self.pos, len(data)
                end = pos + length
            append(data[pos:end].decode("utf-8", "surrogateescape"))
            pos = end
        self.pos = pos
        return values

    def _arrays(self, count: int, depth: int) -> tuple[FieldType, list[Any]]:
        inner: FieldType | None = None
        values = []
        for _ in range(count):
            kind, value = self.array(depth + 1)
            if inner is not None and kind != inner:
                raise self.fail("the arrays inside an array differ in element type")
            inner = kind
            values.append(value)
        return FieldType(ValueType.ARRAY, inner), values
