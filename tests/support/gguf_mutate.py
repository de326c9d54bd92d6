"""Mutations of valid GGUF files, and what must hold of the reader whatever bytes it gets."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from struct import pack

from spola.core.errors import ModelError
from spola.formats.gguf import open_gguf
from support import gguf_raw as raw

__all__ = ["EDGES", "mutate", "read_hostile", "rewrite", "seeds"]

# Numbers where bounds checks, sign conversions and multiplications go wrong.
EDGES = (
    *(0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 31, 32, 33, 255, 256, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33, 2**48, 2**60, 2**61, 2**62),
    *(2**63 - 1, 2**63, 2**63 + 1, 2**64 - 32, 2**64 - 8, 2**64 - 1),
)


def seeds() -> list[bytes]:
    """Small valid files that hold every construct of the format."""
    arch = raw.pair("general.architecture", raw.STRING, raw.text("llama"))
    scalars = tuple(
        raw.pair(f"k.{kind}", kind, raw.scalar(kind, 1))
        for kind in (raw.U8, raw.I8, raw.U16, raw.I16, raw.U32, raw.I32, raw.F32, raw.BOOL)
    )
    wide = tuple(raw.pair(f"k.{kind}", kind, raw.scalar(kind, 1)) for kind in (raw.U64, raw.I64, raw.F64))
    tokens = b"".join(raw.text(token) for token in ("a", "bc", "", "日本", b"\xff"))
    inner = raw.array(raw.U16, bytes(4), 2) + raw.array(raw.U16, b"", 0)
    arrays = (
        raw.pair("tokens", raw.ARRAY, raw.array(raw.STRING, tokens, 5)),
        raw.pair("scores", raw.ARRAY, raw.array(raw.F32, bytes(20), 5)),
        raw.pair("flags", raw.ARRAY, raw.array(raw.BOOL, b"\0\1", 2)),
        raw.pair("nested", raw.ARRAY, raw.array(raw.ARRAY, inner, 2)),
    )
    aligned = raw.pair("general.alignment", raw.U32, raw.scalar(raw.U32, 64))
    tensors = (raw.info("a", (8, 2)), raw.info("b", (32, 1), 2, 64), raw.info("c", (256,), 14, 128))
    single = raw.pair("split.count", raw.U16, raw.scalar(raw.U16, 1))
    return [
        raw.gguf((arch, *scalars, *wide, *arrays), tensors, bytes(128 + 210)),
        raw.gguf((arch, aligned, single), tensors, bytes(128 + 210), alignment=64, version=2),
        raw.gguf((arch, *arrays)),
        raw.gguf((), tensors, bytes(128 + 210)),
    ]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one to four random changes; most hit the header."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if changed:
            _change(changed, rng)
    return bytes(changed)


def _change(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    kind = rng.randrange(7)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    elif kind == 2:
        data[at : at + 8] = pack("<Q", rng.choice(EDGES))[: len(data) - at]
    elif kind == 3:
        data[at : at + 4] = pack("<I", rng.choice(EDGES) & 0xFFFFFFFF)[: len(data) - at]
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        del data[at : at + rng.choice((1, 4, 8, 16, 40))]
    else:
        start = rng.randrange(len(data))
        data[at:at] = data[start : start + rng.choice((1, 4, 8, 16, 40))]


def rewrite(path: Path, data: bytes) -> None:
    """Make ``data`` the content of the existing file ``path``; far faster than truncating it first."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def read_hostile(path: Path) -> str | None:
    """Open ``path`` and read everything in it: the text of the refusal, or None where it is a valid file.

    Any exception but ModelError escapes; so does an AssertionError where an accepted file is not sound.
    """
    try:
        model = open_gguf(path)
    except ModelError as error:
        message = str(error)
        assert message.isprintable(), message
        return message
    with model:
        size = path.stat().st_size
        spans = sorted((entry.offset, entry.offset + entry.nbytes) for entry in model.tensors.values())
        assert all(0 < start < end <= size for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        for name, entry in model.tensors.items():
            assert len(model.read(name)) == entry.nbytes
    return None
