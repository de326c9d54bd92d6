"""The words of GGUF: value types, and the limits spola sets on a header.

Follows the GGUF specification (docs/gguf.md of the ggml repository), versions 2 and 3. No I/O.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

__all__ = [
    "ALIGNMENT_KEY",
    "DEFAULT_ALIGNMENT",
    "MAGIC",
    "MAX_ALIGNMENT",
    "MAX_DIMS",
    "MAX_ELEMENTS",
    "MAX_HEADER",
    "MAX_KEY",
    "MAX_KEYS",
    "MAX_NAME",
    "MAX_NESTING",
    "MAX_STRING",
    "MAX_TENSORS",
    "SCALARS",
    "VERSIONS",
    "FieldType",
    "ValueType",
    "align_up",
]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

# Bounds on the memory a hostile header can take. Real models stay well below: the largest vocabularies
# have 262,144 tokens and half a million merges, 1.3 million array elements and 15 MB in all.
MAX_HEADER = 64 << 20
MAX_STRING = 16 << 20
MAX_ELEMENTS = 1 << 21
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_NESTING = 4
MAX_ALIGNMENT = 1 << 16
MAX_KEY = (1 << 16) - 1
MAX_NAME = 512
MAX_DIMS = 4


class ValueType(IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[ValueType, Struct] = {
    ValueType.UINT8: Struct("<B"),
    ValueType.INT8: Struct("<b"),
    ValueType.UINT16: Struct("<H"),
    ValueType.INT16: Struct("<h"),
    ValueType.UINT32: Struct("<I"),
    ValueType.INT32: Struct("<i"),
    ValueType.FLOAT32: Struct("<f"),
    ValueType.BOOL: Struct("<B"),
    ValueType.UINT64: Struct("<Q"),
    ValueType.INT64: Struct("<q"),
    ValueType.FLOAT64: Struct("<d"),
}


class FieldType(NamedTuple):
    """How a metadata value is stored; ``element`` is set for arrays only, and nests."""

    type: ValueType
    element: FieldType | None = None


def align_up(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment
