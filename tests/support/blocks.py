"""Encoders and random blocks for fixtures: round-to-nearest for the plain types, random codes for the rest.

Follows the rules of ggml's reference quantizers, so that the plain types equal the gguf package's bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spola.backends.reference.blocks import LAYOUTS, decode
from spola.core.dtype import BY_NAME

__all__ = ["ENCODABLE", "e4m3_codes", "encode", "make_tensor", "random_blocks"]

F32 = npt.NDArray[np.float32]


def encode(dtype: str, array: npt.ArrayLike) -> bytes:
    """``array`` [..., cols] as bytes of type ``dtype``, one of ``ENCODABLE``; ValueError for another type."""
    values = np.ascontiguousarray(array, dtype=np.float32)
    if dtype not in ENCODABLE:
        raise ValueError(f"there is no encoder for {dtype}; use random_blocks")
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    if dtype == "BF16":
        bits = values.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    blocks = values.reshape(-1, BY_NAME[dtype].block)
    return _QUANTIZERS[dtype](blocks).tobytes()


def _inverse(d: F32) -> F32:
    with np.errstate(divide="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d).astype(np.float32)


def _pack(dtype: str, q: npt.NDArray[Any], **scales: F32) -> npt.NDArray[Any]:
    out = np.zeros(len(q), dtype=LAYOUTS[dtype])
    for name, scale in scales.items():
        out[name] = scale[:, 0].astype(np.float16)
    out["qs"] = (q[:, :16] & 15) | ((q[:, 16:] & 15) << 4)
    if "qh" in (out.dtype.names or ()):
        out["qh"] = np.packbits(q >> 4, axis=-1, bitorder="little")
    return out


def _symmetric(dtype: str, blocks: F32, half: int) -> npt.NDArray[Any]:
    at = np.abs(blocks).argmax(axis=-1, keepdims=True)
    d = np.take_along_axis(blocks, at, axis=-1) / np.float32(-half)
    q = np.trunc(blocks * _inverse(d) + np.float32(half + 0.5)).astype(np.uint8).clip(0, 2 * half - 1)
    return _pack(dtype, q, d=d)


def _affine(dtype: str, blocks: F32, top: int) -> npt.NDArray[Any]:
    low = blocks.min(axis=-1, keepdims=True)
    d = (blocks.max(axis=-1, keepdims=True) - low) / np.float32(top)
    q = np.trunc((blocks - low) * _inverse(d) + np.float32(0.5)).astype(np.uint8).clip(0, top)
    return _pack(dtype, q, d=d, m=low)


def _q8_0(blocks: F32) -> npt.NDArray[Any]:
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(d)
    out = np.zeros(len(blocks), dtype=LAYOUTS["Q8_0"])
    out["d"] = d[:, 0].astype(np.float16)
    # Halves are rounded away from zero, as C's roundf does.
    whole = np.trunc(scaled)
    out["qs"] = (whole + np.trunc(2 * (scaled - whole))).astype(np.int8)
    return out


_E4M3 = decode("F8_E4M3", b"".join(b"\0\0\x80?" + bytes(range(i, i + 64)) for i in (0, 64)), 1, 128)[0, :127]


def e4m3_codes(values: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """The nearest E4M3 codes of ``values``, those beyond 448 clipped; ties to the lower magnitude."""
    x = np.asarray(values, np.float32)
    middles = (_E4M3[1:].astype(np.float64) + _E4M3[:-1]) / 2
    return np.searchsorted(middles, np.abs(x)).astype(np.uint8) | np.where(x < 0, 128, 0).astype(np.uint8)


def _f8_e4m3(blocks: F32) -> npt.NDArray[Any]:
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(448)
    out = np.zeros(len(blocks), dtype=[("d", "<f4"), ("qs", "u1", 64)])
    out["d"] = d[:, 0]
    out["qs"] = e4m3_codes(blocks * _inverse(d))
    return out


_QUANTIZERS = {
    "F8_E4M3": _f8_e4m3,
    "Q4_0": lambda blocks: _symmetric("Q4_0", blocks, 8),
    "Q4_1": lambda blocks: _affine("Q4_1", blocks, 15),
    "Q5_0": lambda blocks: _symmetric("Q5_0", blocks, 16),
    "Q5_1": lambda blocks: _affine("Q5_1", blocks, 31),
    "Q8_0": _q8_0,
}
ENCODABLE = ("F32", "F16", "BF16", *_QUANTIZERS)

# dmin / d that centres random blocks: the mean code, as scales and minima have the same range.
_CENTRE = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def random_blocks(dtype: str, rows: int, cols: int, rng: np.random.Generator, std: float = 0.05) -> bytes:
    """Valid blocks of a quantized type with random codes and scales; the weights have about ``std``.

    Every bit of codes and sub-scales varies, which encoding random weights would not achieve.
    """
    kind = BY_NAME[dtype]
    count = rows * (cols // kind.block)
    raw = rng.integers(0, 256, count * kind.block_bytes, dtype=np.uint8)
    blocks = raw.view(LAYOUTS[dtype])
    if dtype == "MXFP4":
        # Codes have a root mean square of 5.8, and three exponents in a row one of 2.6: 15.5 = 2^3.95.
        blocks["e"] = round(np.log2(std) - 3.95) + 128 + rng.integers(0, 3, count)
        return blocks.tobytes()
    spread = rng.uniform(0.5, 1.5, count).astype(np.float32)
    _set_scales(blocks, dtype, spread / 64)
    unit = float(decode(dtype, blocks.tobytes(), rows, cols).std())
    _set_scales(blocks, dtype, spread / 64 * (std / unit))
    return blocks.tobytes()


def _set_scales(blocks: npt.NDArray[Any], dtype: str, d: F32) -> None:
    blocks["d"] = d
    if "dmin" in (blocks.dtype.names or ()):
        blocks["dmin"] = d * np.float32(_CENTRE[dtype])
    if "m" in (blocks.dtype.names or ()):
        blocks["m"] = -d * np.float32(7.5 if dtype == "Q4_1" else 15.5)


def make_tensor(dtype: str, rows: int, cols: int, rng: np.random.Generator, std: float = 0.05) -> bytes:
    """Bytes of a random [rows, cols] matrix of any type: encoded normal weights, or random blocks."""
    if dtype in ENCODABLE:
        return encode(dtype, rng.normal(0.0, std, (rows, cols)).astype(np.float32))
    return random_blocks(dtype, rows, cols, rng, std)
