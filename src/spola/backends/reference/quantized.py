"""The quantized mode: docs/numerics.md operation by operation, in NumPy.

Integer dot products come out of f32 matrix products whose partial sums stay below 2^24, so they are exact in
any order; everything after them is rounded where the page says. Codes are unpacked to f32 once, at load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spola.backends.reference.arrays import (
    F32,
    Accumulator,
    Bool,
    cephes_exp,
    fma,
    gelu,
    gelu_tanh,
    silu,
    silu_1702,
    sum16,
    sum16_squares,
    tanh,
)
from spola.backends.reference.batch import Batch
from spola.backends.reference.blocks import QUANTIZED, check_finite, codes
from spola.backends.reference.cache import KvCache
from spola.backends.reference.maths import full_matrix
from spola.backends.reference.routing import route_f32
from spola.backends.reference.segments import attend
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.spec.decoder import Activation, Attention, Router

__all__ = ["QuantizedMaths", "quantize_a8", "quantize_a16"]

_TINY = np.float32(2.0**-100)  # below this, an amax counts as 0
# Rows and outputs computed together: work arrays stay in the cache, and matrix products stay so small that
# BLAS does not start threads, which wait for each other for ages on a busy machine.
_TILE_ROWS = 24
_TILE_OUT = 1024


@dataclass(frozen=True, slots=True)
class _Floats:
    """Weights that stay floating point, [in, out]."""

    values: F32


@dataclass(frozen=True, slots=True)
class _Integers:
    """``codes`` f32 [groups, group, out]; ``scale`` and ``low`` (the minima) f32 [groups, out].

    ``wide``: activations are int16 per row instead of int8 per 32.
    """

    codes: F32
    scale: F32
    low: F32 | None
    wide: bool


def quantize_a8(x: F32, bad: Bool) -> tuple[F32, F32]:
    """int8 values, as f32 [rows, k], and scales [rows, k / 32]; rows with a non-finite value are marked."""
    rows, k = x.shape
    blocks = x.reshape(rows, k // 32, 32)
    q, d = _quantize(blocks, 127.0)
    bad |= ~np.isfinite(blocks).all(axis=(1, 2))
    return q.reshape(rows, k), d


def quantize_a16(x: F32, bad: Bool) -> tuple[F32, F32]:
    """int16 values, as f32 [rows, k], and one scale per row [rows]."""
    q, d = _quantize(x, 32767.0)
    bad |= ~np.isfinite(x).all(axis=1)
    return q, d


def _quantize(x: F32, top: float) -> tuple[F32, F32]:
    amax = np.abs(x).max(axis=-1)
    amax = np.where(np.isfinite(amax) & (amax >= _TINY), amax, np.float32(0))
    inverse = np.divide(np.float32(top), amax, out=np.zeros_like(amax), where=amax > 0)
    q = np.rint(np.where(amax[..., None] > 0, x, np.float32(0)) * inverse[..., None])
    return q, amax / np.float32(top)


class QuantizedMaths:
    """What the native kernels compute, to within the double rounding of an fma through f64."""

    invariant = True

    def __init__(self, *, precise: bool = False) -> None:
        self._precise = precise

    def matrix(self, tensor: Tensor) -> _Floats | _Integers:
        if tensor.dtype not in QUANTIZED:
            return _Floats(np.ascontiguousarray(full_matrix(tensor).T))
        rows, cols = tensor.shape
        stored = codes(tensor.dtype, tensor.data, rows, cols)
        for part in (stored.scale, stored.min):
            if part is not None:
                check_finite(tensor.name, part)
        if cols % 32:
            raise ModelError(f"tensor {tensor.name}: {cols} columns are no multiple of 32")
        wide = tensor.dtype == "Q8_0" or self._precise
        q, scale, group = stored.q.astype(np.float32), stored.scale, stored.group
        low = None if stored.min is None else np.ascontiguousarray(stored.min.T)
        packed = np.ascontiguousarray(q.T).reshape(cols // group, group, rows)
        return _Integers(packed, np.ascontiguousarray(scale.T), low, wide)

    def nbytes(self, weight: _Floats | _Integers) -> int:
        if isinstance(weight, _Floats):
            return weight.values.nbytes
        return weight.codes.nbytes + weight.scale.nbytes + (0 if weight.low is None else weight.low.nbytes)

    def linear(self, weight: _Floats | _Integers, x: F32, bad: Bool) -> F32:
        if isinstance(weight, _Floats):
            return _float_product(weight.values, x)
        out = np.empty((len(x), weight.scale.shape[1]), np.float32)
        q, d = quantize_a16(x, bad) if weight.wide else quantize_a8(x, bad)
        for r in range(0, len(x), _TILE_ROWS):
            rows = slice(r, r + _TILE_ROWS)
            for c in range(0, out.shape[1], _TILE_OUT):
                columns = slice(c, c + _TILE_OUT)
                product = _wide_product if weight.wide else _narrow_product
                out[rows, columns] = product(weight, columns, q[rows], d[rows])
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        r = _reciprocal_root(sum16_squares(x), x.shape[-1], eps)
        return (x * r[..., None]) * weight

    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        centred = x - (sum16(x) / np.float32(x.shape[-1]))[..., None]
        r = _reciprocal_root(sum16_squares(centred), x.shape[-1], eps)
        return fma(centred * r[..., None], weight, bias)

    def activation(self, kind: Activation) -> Callable[[F32], F32]:
        match kind:
            case "silu":
                return silu
            case "gelu_tanh":
                return gelu_tanh
            case "gelu":
                return gelu
            case "silu_1702":
                return silu_1702
            case "relu":
                return _relu
            case "relu2":
                return _relu2

    def sigmoid(self, x: F32) -> F32:
        one = np.float32(1)
        return one / (one + cephes_exp(-x))

    def route(self, scores: F32, used: int, router: Router, bias: F32 | None) -> F32:
        return route_f32(scores, used, router, bias)

    def softcap(self, x: F32, cap: float) -> F32:
        return np.float32(cap) * tanh(x / np.float32(cap))

    def rotate(self, a: F32, b: F32, cos: F32, sin: F32) -> tuple[F32, F32]:
        return fma(a, cos, -(b * sin)), fma(a, sin, b * cos)

    def attend(
        self, a: Attention, q: F32, cache: KvCache, layer: int, batch: Batch, sinks: F32 | None
    ) -> F32:
        cap = a.softcap
        bend = None if cap is None else lambda s: self.softcap(s, cap)
        return attend(a, q, cache, layer, batch, sinks, bend)


def _relu(x: F32) -> F32:
    return np.maximum(x, np.float32(0))


def _relu2(x: F32) -> F32:
    return _relu(x) * _relu(x)


def _reciprocal_root(squares: F32, n: int, eps: float) -> F32:
    return np.float32(1) / np.sqrt(squares / np.float32(n) + np.float32(eps))


def _float_product(values: F32, x: F32) -> F32:
    """acc = fma(w, x, acc) over k ascending."""
    total = Accumulator(np.zeros((len(x), values.shape[1]), np.float32))
    wide = x.astype(np.float64)
    for k, row in enumerate(values.astype(np.float64)):
        total.add(wide[:, k, None] * row)
    return total.value


def _grouped(q: F32, group: int) -> F32:
    """[rows, k] as [groups, rows, group], so that one batched product takes all groups."""
    return np.ascontiguousarray(q.reshape(len(q), -1, group).transpose(1, 0, 2))


def _narrow_product(w: _Integers, columns: slice, q: F32, d: F32) -> F32:
    """int8 activations with a scale per 32; q [rows, k], d [rows, k / 32]."""
    group = w.codes.shape[1]
    per_group = np.repeat(d.T, 32 // group, axis=0)  # [groups, rows]
    grouped = _grouped(q, group)
    dots = np.matmul(grouped, w.codes[:, :, columns])
    # The integers are exact in f32, the product is rounded once.
    sums = (per_group * grouped.sum(axis=2)).astype(np.float64)
    scale = w.scale[:, columns]
    low = None if w.low is None else w.low[:, columns].astype(np.float64)
    total = Accumulator(np.zeros(dots.shape[1:], np.float32))
    scaled, work = np.empty_like(dots[0]), np.empty(dots.shape[1:])
    factors = per_group.astype(np.float64)
    for g in range(len(dots)):
        np.multiply(scale[g], dots[g], out=scaled)
        np.multiply(scaled, factors[g][:, None], out=work)
        total.add(work)
        if low is not None:
            np.multiply(sums[g][:, None], low[g], out=work)
            total.add(work)
    return total.value


def _wide_product(w: _Integers, columns: slice, q: F32, d: F32) -> F32:
    """int16 activations with one scale per row; q [rows, k], d [rows]."""
    grouped = _grouped(q, w.codes.shape[1])
    high = np.floor(grouped / np.float32(256))
    rest = grouped - np.float32(256) * high
    part = w.codes[:, :, columns]
    # Two exact products of at most 2^20 each stand for the one that would pass 2^24.
    dots = np.matmul(high, part).astype(np.float64) * 256.0 + np.matmul(rest, part)
    sums = grouped.sum(axis=2)  # at most 32 * 32767: exact
    scale = w.scale[:, columns].astype(np.float64)
    low = None if w.low is None else w.low[:, columns].astype(np.float64)
    total = Accumulator(np.zeros(dots.shape[1:], np.float32))
    for g in range(len(dots)):
        total.add(dots[g].astype(np.float32) * scale[g])
        if low is not None:
            total.add(sums[g].astype(np.float64)[:, None] * low[g])
    return total.value * d[:, None]
