"""Reference decoding of GGUF's block formats: bytes to f32, and to integer codes with their scales.

The layouts are those of ggml (``ggml-common.h``, ``ggml-quants.c``), little-endian, with f16 scales. Every
type is a group of integer codes with an f32 scale and, for some, an f32 minimum: ``w = scale * q``, or
``w = scale * q + min``, each product and sum rounded to f32 once. MXFP4 is the OCP microscaling format with
its table doubled and its scale halved, so that codes are integers; exponent 255 counts as 2^127, as in ggml.
Does not encode, and does not know tensors or models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError

__all__ = ["LAYOUTS", "QUANTIZED", "Codes", "check_finite", "codes", "decode"]

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
Ints = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    dtype=np.int8,
)
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8)


def _e4m3() -> F32:
    """The values of OCP's 8-bit floats by code: sign, four bits of exponent (bias 7), three of mantissa."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    value[code & 0x7F == 0x7F] = np.nan
    return np.where(code < 128, value, -value).astype(np.float32)


_E4M3 = _e4m3()
_PAIRS = np.array([0, 2, 4, 6], dtype=np.uint8)
_BITS = np.arange(8, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix as integers. ``q`` int8 [rows, cols]; ``scale``, ``min`` f32 [rows, cols / group].

    ``q`` has its zero point taken off: signed where there is no ``min``, from 0 up where there is one.
    """

    q: I8
    scale: F32
    min: F32 | None
    group: int

    def values(self) -> F32:
        """The weights, f32 [rows, cols]."""
        rows, cols = self.q.shape
        with np.errstate(over="ignore", invalid="ignore"):
            grouped = self.q.reshape(rows, cols // self.group, self.group).astype(np.float32)
            grouped *= self.scale[:, :, None]
            if self.min is not None:
                grouped += self.min[:, :, None]
        return grouped.reshape(rows, cols)


@dataclass(frozen=True, slots=True)
class _Parts:
    """One array per field of Codes, a row per block: ``q`` [n, block], ``scale`` [n, block / group]."""

    q: Ints
    scale: F32
    min: F32 | None = None


def decode(dtype: str, data: Buffer, rows: int, cols: int) -> F32:
    """The f32 [rows, cols] that ``data`` stores, row-major, as type ``dtype`` (a name of ``core.dtype``).

    Non-finite scales give non-finite values. ValueError for an unknown type or a wrong size.
    """
    _check_size(dtype, data, rows, cols)
    if dtype in QUANTIZED:
        return codes(dtype, data, rows, cols).values()
    if dtype == "F8_E4M3":
        blocks = np.frombuffer(data, dtype=[("d", "<f4"), ("q", "u1", 64)])
        values: F32 = _E4M3[blocks["q"]] * blocks["d"][:, None]
        return values.reshape(rows, cols)
    if dtype == "BF16":
        wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(rows, cols)
    stored = np.frombuffer(data, dtype="<f4" if dtype == "F32" else "<f2")
    return stored.astype(np.float32).reshape(rows, cols)


def codes(dtype: str, data: Buffer, rows: int, cols: int) -> Codes:
    """The integers, scales and minima of a matrix of one of the ``QUANTIZED`` types.

    ValueError for another type or a wrong size.
    """
    _check_size(dtype, data, rows, cols)
    if dtype not in QUANTIZED:
        raise ValueError(f"{dtype} has no integer codes")
    with np.errstate(over="ignore", invalid="ignore"):
        parts = _UNPACK[dtype](np.frombuffer(data, dtype=LAYOUTS[dtype]))
    groups = parts.scale.size // rows
    return Codes(
        q=parts.q.astype(np.int8).reshape(rows, cols),
        scale=parts.scale.reshape(rows, groups),
        min=None if parts.min is None else parts.min.reshape(rows, groups),
        group=cols // groups,
    )


def check_finite(tensor: str, values: F32) -> None:
    """ModelError, naming the row, where ``values`` [rows, n] (weights or scales) are not finite."""
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite.all(axis=1)))
        first = values[row][~finite[row]][0]
        raise ModelError(f"tensor '{tensor}': row {row} holds {first}; its weights or scales are damaged")


def _check_size(dtype: str, data: Buffer, rows: int, cols: int) -> None:
    if dtype not in BY_NAME:
        raise ValueError(f"{dtype} is no type that spola decodes")
    kind = BY_NAME[dtype]
    if rows < 1 or cols < 1 or cols % kind.block:
        raise ValueError(f"[{rows}, {cols}] is no shape of whole {dtype} blocks of {kind.block}")
    size = np.frombuffer(data, dtype=np.uint8).size
    expected = rows * (cols // kind.block) * kind.block_bytes
    if size != expected:
        raise ValueError(f"[{rows}, {cols}] of {dtype} are {expected} bytes, not {size}")


def _layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype(list(fields))


LAYOUTS: dict[str, np.dtype[Any]] = {
    "Q4_0": _layout(("d", "<f2"), ("qs", "u1", 16)),
    "Q4_1": _layout(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)),
    "Q5_0": _layout(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)),
    "Q5_1": _layout(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)),
    "Q8_0": _layout(("d", "<f2"), ("qs", "i1", 32)),
    "Q2_K": _layout(("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")),
    "Q3_K": _layout(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")),
    "Q4_K": _layout(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)),
    "Q5_K": _layout(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
    "Q6_K": _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")),
    "IQ4_NL": _layout(("d", "<f2"), ("qs", "u1", 16)),
    "IQ4_XS": _layout(("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)),
    "MXFP4": _layout(("e", "u1"), ("qs", "u1", 16)),
}
QUANTIZED = frozenset(LAYOUTS)


def _f32(field: Ints) -> F32:
    """A scalar field of every block as f32 [n, 1]."""
    return field.astype(np.float32).reshape(-1, 1)


def _nibbles(packed: Ints) -> Ints:
    """[..., n] bytes to [..., 2n] codes: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bit_pairs(packed: Ints) -> Ints:
    """[..., 32] bytes to [..., 128] codes: bits 0-1 of all bytes, then bits 2-3, and so on."""
    spread = (packed[..., None, :] >> _PAIRS[:, None]) & 3
    return spread.reshape(*packed.shape[:-1], 128)


def _bit_planes(packed: Ints) -> Ints:
    """[n, 32] bytes to [n, 256] bits: bit 0 of all bytes, then bit 1, and so on."""
    return ((packed[:, None, :] >> _BITS[:, None]) & 1).reshape(-1, 256)


def _fifth_bits(packed: Ints) -> Ints:
    """[n, 4] bytes to [n, 32] bits in order, each with the value 16."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q4_0(b: Ints) -> _Parts:
    return _Parts(_nibbles(b["qs"]).astype(np.int8) - 8, _f32(b["d"]))


def _q4_1(b: Ints) -> _Parts:
    return _Parts(_nibbles(b["qs"]), _f32(b["d"]), _f32(b["m"]))


def _q5_0(b: Ints) -> _Parts:
    return _Parts((_nibbles(b["qs"]) | _fifth_bits(b["qh"])).astype(np.int8) - 16, _f32(b["d"]))


def _q5_1(b: Ints) -> _Parts:
    return _Parts(_nibbles(b["qs"]) | _fifth_bits(b["qh"]), _f32(b["d"]), _f32(b["m"]))


def _q8_0(b: Ints) -> _Parts:
    return _Parts(b["qs"], _f32(b["d"]))


def _q2_k(b: Ints) -> _Parts:
    scale = _f32(b["d"]) * (b["scales"] & 15).astype(np.float32)
    low = _f32(b["dmin"]) * (b["scales"] >> 4).astype(np.float32)
    return _Parts(_bit_pairs(b["qs"].reshape(-1, 2, 32)), scale, -low)


def _q3_k(b: Ints) -> _Parts:
    # 16 scales of 6 bits: the low four in the nibbles of bytes 0-7, the high two in bytes 8-11.
    low = _nibbles(b["scales"][:, :8])
    high = ((b["scales"][:, None, 8:] >> _PAIRS[:, None]) & 3).reshape(-1, 16)
    scales = (low | (high << 4)).astype(np.int8) - 32
    two_bits = _bit_pairs(b["qs"].reshape(-1, 2, 32)).reshape(-1, 256).astype(np.int8)
    q = two_bits + 4 * _bit_planes(b["hmask"]).astype(np.int8) - 4
    return _Parts(q, _f32(b["d"]) * scales.astype(np.float32))


def _six_bit_pairs(packed: Ints) -> tuple[F32, F32]:
    """The 8 scales and 8 minima of Q4_K and Q5_K, 6 bits each, from [n, 12] bytes, as f32 [n, 8]."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(b: Ints) -> _Parts:
    scales, minima = _six_bit_pairs(b["scales"])
    q = _nibbles(b["qs"].reshape(-1, 4, 32))
    return _Parts(q, _f32(b["d"]) * scales, -(_f32(b["dmin"]) * minima))


def _q5_k(b: Ints) -> _Parts:
    scales, minima = _six_bit_pairs(b["scales"])
    q = _nibbles(b["qs"].reshape(-1, 4, 32)).reshape(-1, 256) | (_bit_planes(b["qh"]) << 4)
    return _Parts(q, _f32(b["d"]) * scales, -(_f32(b["dmin"]) * minima))


def _q6_k(b: Ints) -> _Parts:
    low = _nibbles(b["ql"].reshape(-1, 2, 64))
    high = _bit_pairs(b["qh"].reshape(-1, 2, 32))
    q = (low | (high << 4)).astype(np.int8) - 32
    return _Parts(q, _f32(b["d"]) * b["scales"].astype(np.float32))


def _iq4_nl(b: Ints) -> _Parts:
    return _Parts(_IQ4[_nibbles(b["qs"])], _f32(b["d"]))


def _iq4_xs(b: Ints) -> _Parts:
    low = np.stack([b["scales_l"] & 15, b["scales_l"] >> 4], axis=-1).reshape(-1, 8)
    high = (b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = (low | (high << 4)).astype(np.int8) - 32
    q = _IQ4[_nibbles(b["qs"].reshape(-1, 8, 16))]
    return _Parts(q, _f32(b["d"]) * scales.astype(np.float32))


def _mxfp4(b: Ints) -> _Parts:
    scale = np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128).astype(np.float32)
    return _Parts(_E2M1_DOUBLED[_nibbles(b["qs"])], scale.reshape(-1, 1))


_UNPACK: dict[str, Callable[[Ints], _Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
