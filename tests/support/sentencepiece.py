"""A small SentencePiece ``tokenizer.model``, written byte by byte."""

from __future__ import annotations

import struct

__all__ = ["PIECES", "field", "sentencepiece_model"]

PIECES = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{i:02X}>", 0.0, 6) for i in range(256)),
    *((piece, -float(i), 1) for i, piece in enumerate(["▁a", "ab", "▁ab", "▁", "a", "b", "c", "é"])),
]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece_model(
    kind: int = 2, charsmap: bytes = b"", pieces: list[tuple[str, float, int]] = PIECES
) -> bytes:
    data = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + field(3, type_)) for text, score, type_ in pieces
    )
    trainer = field(3, kind) + field(40, 0) + field(41, 1) + field(42, 2) + field(43, -1)
    normalizer = field(1, b"identity") + (field(2, charsmap) if charsmap else b"") + field(3, 1)
    return data + field(2, trainer) + field(3, normalizer) + field(99, b"unknown") + field(98, 1.5)
