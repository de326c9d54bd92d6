"""A table of malformed GGUF files: what is in each, and the words its refusal must hold.

Each case differs from a valid file in one thing, so that the refusal is for that thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import pack

from support.gguf_raw import (
    ARRAY,
    BOOL,
    F32,
    F64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    array,
    gguf,
    info,
    pair,
    scalar,
    text,
)

__all__ = ["CASES", "VALID", "Case"]

Q4_0, Q4_2, IQ2_XXS, Q4_0_4_4, Q4_0_4_8, Q4_0_8_8, IQ4_NL_4_4 = 2, 4, 16, 31, 32, 33, 36


@dataclass(frozen=True)
class Case:
    """``data``, followed by zeros up to ``size`` where that is larger; ``match`` is a regular expression."""

    name: str
    data: bytes
    match: str
    size: int = 0

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(self.data)
            if self.size > len(self.data):
                file.truncate(self.size)


ARCH = pair("general.architecture", STRING, text("llama"))
ROWS = bytes(64)
VALID = gguf((ARCH,), (info("w", (8, 2)),), ROWS)


def _keys(*pairs: bytes) -> bytes:
    return gguf((ARCH, *pairs), (info("w", (8, 2)),), ROWS)


def _tensors(*infos: bytes, data: bytes = ROWS * 4) -> bytes:
    return gguf((ARCH,), infos, data)


def _key_cut(start: bytes) -> bytes:
    """A header that promises one more key, of which only ``start`` is there."""
    return gguf((ARCH,), n_pairs=2)[: 24 + len(ARCH)] + start


def _tensor_cut(start: bytes) -> bytes:
    return gguf((ARCH,), n_tensors=1)[: 24 + len(ARCH)] + start


def _alignment(kind: int, payload: bytes) -> bytes:
    return _keys(pair("general.alignment", kind, payload))


def _big_endian(version: int) -> bytes:
    return b"GGUF" + pack(">IQQ", version, 0, 0)


_PREAMBLE = (
    Case("empty", b"", "is empty"),
    Case("three bytes", b"GGU", "ends after 3 bytes, within the GGUF magic"),
    Case("magic only", b"GGUF", "ends after 4 bytes, within the GGUF version"),
    Case("half a version", VALID[:6], "ends after 6 bytes, within the GGUF version"),
    Case("magic GGML", b"GGML" + VALID[4:], "old GGML format"),
    Case("magic lmgg", b"lmgg" + VALID[4:], "old GGML format"),
    Case("magic tjgg", b"tjgg" + VALID[4:], "old GGJT format"),
    Case("magic FUGG", b"FUGG" + VALID[4:], "FUGG.*big-endian"),
    Case("zip archive", b"PK\x03\x04" + bytes(60), "zip archive"),
    Case("web page", b"<!DOCTYPE html><html></html>", "web page"),
    Case("LFS pointer", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    Case("other magic", b"\x00\xffhi" + bytes(60), r"begins with '\\x00\\xffhi'"),
    Case("version 0", gguf((ARCH,), version=0), "version 0; spola reads versions 2 and 3"),
    Case("version 1", gguf((ARCH,), version=1), "version 1, which is obsolete"),
    Case("version 4", gguf((ARCH,), version=4), "version 4; spola"),
    Case("version 99", gguf((ARCH,), version=99), "version 99; spola"),
    Case("big-endian, version 3", _big_endian(3), "big-endian"),
    Case("big-endian, version 2", _big_endian(2), "big-endian"),
)
_COUNTS = (
    Case("cut in the tensor count", VALID[:12], "tensor count: the file ends at byte 12"),
    Case("cut before the key count", gguf()[:16], "metadata count: the file ends at byte 16"),
    Case("cut in the key count", gguf()[:20], "metadata count: the file ends at byte 20"),
    Case("2^63 keys", gguf((ARCH,), n_pairs=1 << 63), "metadata count: 9223372036854775808 entries"),
    Case("2^64 - 1 keys", gguf((ARCH,), n_pairs=2**64 - 1), "metadata count: 1844.* entries"),
    Case("2^62 tensors", gguf((ARCH,), n_tensors=1 << 62), "tensor count: 4611686018427387904 entries"),
    Case("one key too many", gguf(n_pairs=1)[:24], "metadata count: 1 entries cannot fit"),
    Case("70,000 keys", gguf(n_pairs=70_000), "metadata count: 70000 exceeds the limit", 4 << 20),
    Case("70,000 tensors", gguf(n_tensors=70_000), "tensor count: 70000 exceeds the limit", 4 << 20),
)
_KEYS = (
    Case("cut in a key length", _key_cut(b"\x05\x00\x00"), "key 2 of 2: the file ends at byte"),
    Case("key of 2^62 bytes", _key_cut(text("k", 1 << 62) + bytes(20)), "key 2 of 2: a string of 46116860"),
    Case("cut in a key", _key_cut(text("longer.than.the.file", 99)), "key 2 of 2: a string of 99 bytes"),
    Case("empty key", _keys(pair("", U8, b"\x01")), "key 2 of 2: the name is empty"),
    Case("key not UTF-8", _keys(pair(b"a\xff\xfe", U8, b"\x01")), r"name 'a\\xff\\xfe' is not valid UTF-8"),
    Case("key with a surrogate", _keys(pair(b"\xed\xa0\x80", U8, b"\x01")), "is not valid UTF-8"),
    Case("key twice", _keys(ARCH), "'general.architecture' appears twice"),
    Case("key of 70,000 bytes", _keys(pair("k" * 70_000, U8, b"\x01")), "exceeds the limit of 65535"),
)
_VALUES = (
    Case("cut before a value type", _key_cut(text("some.key")), "'some.key': the file ends"),
    Case("value type 13", _keys(pair("k", 13, bytes(8))), "'k': unknown value type 13"),
    Case("value type 99", _keys(pair("k", 99, bytes(8))), "'k': unknown value type 99"),
    Case("cut in a u32", _key_cut(pair("some.key", U32, b"\x01\x02")), "'some.key': the file ends"),
    Case("cut in an f64", _key_cut(pair("some.key", F64, bytes(7))), "'some.key': the file ends"),
    Case("cut in a string length", _key_cut(pair("some.key", STRING, bytes(7))), "'some.key': the file ends"),
    Case("string of 2^62 bytes", _keys(pair("k", STRING, text("x", 1 << 62))), "'k': a string of 4611686"),
    Case("string of 2^64 - 1 bytes", _keys(pair("k", STRING, text("x", 2**64 - 1))), "'k': a string of 1844"),
    Case(
        "cut in a string", _key_cut(pair("some.key", STRING, text("abc", 4))), "string of 4 bytes cannot fit"
    ),
    Case("string of 1 GB", _key_cut(pair("k", STRING, text("", 1 << 30))), "limit of 16777216", 2 << 30),
    Case(
        "template not UTF-8",
        _keys(pair("tokenizer.chat_template", STRING, text(b"ok \xc3("))),
        "'tokenizer.chat_template': the text is not valid UTF-8 at its byte 3",
    ),
    Case("boolean 2", _keys(pair("k", BOOL, b"\x02")), "'k': a boolean is stored as 2"),
    Case("newline in a key", _keys(pair("a\nb", 99, b"")), r"'a\\nb': unknown value type"),
)
_ARRAYS = (
    Case("cut in an array head", _key_cut(pair("some.key", ARRAY, bytes(9))), "'some.key': the file ends"),
    Case(
        "array of 2^60",
        _keys(pair("k", ARRAY, array(U8, b"", 1 << 60))),
        "'k': an array of 1152921504606846976",
    ),
    Case("array of 2^64 - 1", _keys(pair("k", ARRAY, array(F64, b"", 2**64 - 1))), "'k': an array of 1844"),
    Case("2^61 strings", _keys(pair("k", ARRAY, array(STRING, b"", 1 << 61))), "'k': an array of 2305"),
    Case("array of type 99", _keys(pair("k", ARRAY, array(99, b"", 1))), "'k': unknown value type 99"),
    Case(
        "cut in an array", _key_cut(pair("k", ARRAY, array(F32, bytes(10), 3))), "'k': an array of 3 elements"
    ),
    Case(
        "string of 2^62 in an array",
        _keys(pair("k", ARRAY, array(STRING, text("a") + text("b", 1 << 62), 2))),
        "'k': a string of 4611686",
    ),
    Case(
        "cut in a string of an array",
        _key_cut(pair("k", ARRAY, array(STRING, text("a") + text("bcd", 8), 2))),
        "'k': a string of 8 bytes cannot fit",
    ),
    Case(
        "cut between strings of an array",
        _key_cut(pair("k", ARRAY, array(STRING, text("a" * 20), 2))),
        "'k': the file ends",
    ),
    Case("boolean 7 in an array", _keys(pair("k", ARRAY, array(BOOL, b"\0\1\7", 3))), "stored as 7"),
    Case("arrays 2000 deep", _keys(pair("k", ARRAY, array(ARRAY, b"", 1) * 2000)), "nested more than 4 deep"),
    Case(
        "arrays of two types in one",
        _keys(pair("k", ARRAY, array(ARRAY, array(U8, b"a", 1) + array(BOOL, b"\1", 1), 2))),
        "'k': the arrays inside an array differ",
    ),
    Case(
        "2^60 inside an array",
        _keys(pair("k", ARRAY, array(ARRAY, array(U16, b"", 1 << 60), 1))),
        "'k': an array of 1152921504606846976",
    ),
    Case(
        "3 million bytes", _key_cut(pair("k", ARRAY, array(U8, b"", 3_000_000))), "2097152 elements", 4 << 20
    ),
    Case("3 million strings", _key_cut(pair("k", ARRAY, array(STRING, b"", 3_000_000))), "2097152", 64 << 20),
    Case("3 million arrays", _key_cut(pair("k", ARRAY, array(ARRAY, b"", 3_000_000))), "2097152", 64 << 20),
)
_ALIGNMENTS = (
    Case("alignment 0", _alignment(U32, scalar(U32, 0)), "'general.alignment' is 0"),
    Case("alignment 3", _alignment(U32, scalar(U32, 3)), "'general.alignment' is 3"),
    Case("alignment 4", _alignment(U32, scalar(U32, 4)), "'general.alignment' is 4"),
    Case("alignment 48", _alignment(U32, scalar(U32, 48)), "'general.alignment' is 48; it must be a power"),
    Case("alignment 2^30", _alignment(U32, scalar(U32, 1 << 30)), "'general.alignment' is 1073741824"),
    Case("alignment as text", _alignment(STRING, text("32")), "'general.alignment' has type STRING"),
    Case("alignment of 64 bits", _alignment(U64, scalar(U64, 32)), "'general.alignment' has type UINT64"),
    Case(
        "alignment as list", _alignment(ARRAY, array(U32, bytes(4), 1)), "'general.alignment' has type ARRAY"
    ),
)
_ROW = info("tensor.name", (8, 2))
_TABLE = (
    Case("no tensor table", _tensor_cut(b""), "tensor 1 of 1: the file ends at byte"),
    Case("cut in a tensor name", _tensor_cut(text("w" * 40, 50)), "tensor 1 of 1: a string of 50 bytes"),
    Case("cut in the dims", _tensor_cut(_ROW[:32]), "'tensor.name': the file ends"),
    Case("cut in the type", _tensor_cut(_ROW[:-9]), "'tensor.name': the file ends"),
    Case("cut in the offset", _tensor_cut(_ROW[:-1]), "'tensor.name': the file ends"),
    Case("name of 2^63 bytes", _tensor_cut(text("w", 1 << 63) + bytes(40)), "tensor 1 of 1: a string of 922"),
    Case("empty tensor name", _tensors(info("", (8, 2))), "tensor 1 of 1: the name is empty"),
    Case("tensor name not UTF-8", _tensors(info(b"w\x80", (8, 2))), r"'w\\x80' is not valid UTF-8"),
    Case("tensor name of 1000", _tensors(info("w" * 1000, (8, 2))), "exceeds the limit of 512"),
    Case(
        "tensor twice",
        _tensors(info("w", (8,)), info("w", (8,), 0, 32)),
        "tensor 'w': the name appears twice",
    ),
    Case("no dimensions", _tensors(info("w", ())), "tensor 'w': has 0 dimensions"),
    Case("five dimensions", _tensors(info("w", (1, 1, 1, 1, 1))), "tensor 'w': has 5 dimensions"),
    Case(
        "2^31 dimensions", _tensors(info("w", (8,), n_dims=1 << 31)), "tensor 'w': has 2147483648 dimensions"
    ),
    Case(
        "dimension zero",
        _tensors(info("w", (8, 0, 2))),
        r"tensor 'w': has a dimension of zero in \[8, 0, 2\]",
    ),
    Case("dims of 2^66", _tensors(info("w", (1 << 33, 1 << 33))), "tensor 'w': .* overflow"),
    Case("dims that wrap to 0", _tensors(info("w", (1 << 32, 1 << 32))), "tensor 'w': .* overflow"),
    Case("negative dimension", _tensors(info("w", (2**64 - 8,))), "tensor 'w': .* overflow"),
    Case("2^62 elements", _tensors(info("w", (1 << 31, 1 << 31))), "'w': its data would end at byte"),
)
_TYPES = (
    Case("type 200", _tensors(info("w", (8, 2), 200)), r"'w' has type number 200 \(unknown\)"),
    Case("type 2^32 - 1", _tensors(info("w", (8, 2), 2**32 - 1)), "'w' has type number 4294967295"),
    Case("type IQ2_XXS", _tensors(info("w", (256,), IQ2_XXS)), "'w' has type IQ2_XXS, which"),
    Case("type Q4_2", _tensors(info("w", (32,), Q4_2)), "'w' has type Q4_2 .removed"),
    Case("type Q4_0_4_4", _tensors(info("w", (32,), Q4_0_4_4)), "'w' has type Q4_0_4_4 .removed"),
    Case("type Q4_0_4_8", _tensors(info("w", (32,), Q4_0_4_8)), "'w' has type Q4_0_4_8 .removed"),
    Case("type Q4_0_8_8", _tensors(info("w", (32,), Q4_0_8_8)), "'w' has type Q4_0_8_8 .removed"),
    Case("type IQ4_NL_4_4", _tensors(info("w", (32,), IQ4_NL_4_4)), "'w' has type IQ4_NL_4_4 .removed"),
    Case(
        "half a block",
        _tensors(info("w", (48, 2), Q4_0)),
        "'w': rows of 48 are no whole number of Q4_0 blocks",
    ),
)
_PLACES = (
    Case("offset not aligned", _tensors(info("w", (8,), 0, 20)), "'w': offset 20 is no multiple of 32"),
    Case(
        "offset past the end", _tensors(info("w", (8,), 0, 1 << 40)), "'w': its data would end at byte 1099"
    ),
    Case(
        "offset near 2^64", _tensors(info("w", (8,), 0, 2**64 - 32)), "'w': its data would end at byte 1844"
    ),
    Case("data cut", VALID[:-1], f"'w': its data would end at byte {len(VALID)}, but the file has"),
    Case("no data", VALID[:-64], "'w': its data would end at byte"),
    Case("overlap", _tensors(info("a", (8, 2)), info("b", (8,), 0, 32)), "tensors 'a' and 'b' overlap"),
    Case(
        "same place", _tensors(info("a", (8,), 0, 32), info("b", (8,), 0, 32)), "tensors 'a' and 'b' overlap"
    ),
    Case("table order", _tensors(info("a", (8,), 0, 64), info("b", (40,))), "tensors 'b' and 'a' overlap"),
)
_SPLITS = (
    Case(
        "split count as text", _keys(pair("split.count", STRING, text("3"))), "'split.count' must be a whole"
    ),
    Case(
        "negative split count", _keys(pair("split.count", 5, scalar(5, -2))), "'split.count' must be a whole"
    ),
    Case("lost shard", _keys(pair("split.count", U16, scalar(U16, 3))), "one of 3 shards, but is not named"),
)

CASES = (
    *_PREAMBLE,
    *_COUNTS,
    *_KEYS,
    *_VALUES,
    *_ARRAYS,
    *_ALIGNMENTS,
    *_TABLE,
    *_TYPES,
    *_PLACES,
    *_SPLITS,
)
