"""Array types and the rounding primitives that the quantized mode is built of (docs/numerics.md).

Every function here is element-wise or reduces over the last axis in one fixed order, so that a result never
depends on how many rows are computed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "F32",
    "F64",
    "Accumulator",
    "Bool",
    "Ints",
    "cephes_exp",
    "fma",
    "gelu",
    "gelu_tanh",
    "narrow",
    "silu",
    "silu_1702",
    "sum16",
    "sum16_squares",
    "tanh",
]

# What an array holds, for readers: NumPy's stubs lose the element type in mixed arithmetic.
F32 = npt.NDArray[Any]
F64 = npt.NDArray[Any]
Bool = npt.NDArray[Any]
Ints = npt.NDArray[Any]

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(-0.693359375)
_LN2_LOW = np.float32(2.12194440e-4)
_POLYNOMIAL = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
_ONE = np.float32(1)


def narrow(x: Any) -> F32:
    """``x`` rounded to f32."""
    out: F32 = np.asarray(x, np.float32)
    return out


def fma(a: Any, b: Any, c: Any) -> F32:
    """a * b + c for f32 arguments, through f64: the product is exact, the sum is rounded twice at worst."""
    return narrow(np.multiply(a, b, dtype=np.float64) + c)


class Accumulator:
    """f32 sums held as f64, so that an fma is a product, a sum and two conversions, all in place."""

    def __init__(self, start: F32) -> None:
        self.value: F32 = start
        self._wide: F64 = start.astype(np.float64)

    def add(self, products: F64) -> None:
        """value += products, rounded to f32. ``products`` are exact f64 and are overwritten."""
        products += self._wide
        self.value[...] = products
        self._wide[...] = self.value


def _lanes(x: F32) -> F32:
    """[..., n] as [n / 16 rounded up, ..., 16], with +0 behind the end."""
    n = x.shape[-1]
    if n % 16:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], -n % 16), np.float32)], axis=-1)
    return np.moveaxis(x.reshape(*x.shape[:-1], -1, 16), -2, 0)


def _tree(lanes: F32) -> F32:
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


def sum16(x: F32) -> F32:
    """The sum over the last axis in sixteen lanes."""
    total = np.zeros((*x.shape[:-1], 16), np.float32)
    for part in _lanes(x):
        total = total + part
    return _tree(total)


def sum16_squares(x: F32) -> F32:
    """The sum of squares over the last axis, each lane an fma."""
    total = np.zeros((*x.shape[:-1], 16), np.float32)
    for part in _lanes(x):
        total = fma(part, part, total)
    return _tree(total)


def cephes_exp(x: F32) -> F32:
    """exp, by the polynomial of Cephes' expf."""
    safe = np.where(np.isnan(x) | (x < np.float32(-87.33654)), np.float32(0), np.minimum(x, np.float32(88)))
    n = np.rint(safe * _LOG2_E)
    r = fma(n, _LN2_LOW, fma(n, _LN2_HIGH, safe))
    p = np.full_like(r, _POLYNOMIAL[0])
    for c in _POLYNOMIAL[1:]:
        p = fma(p, r, c)
    y = fma(p, r * r, r) + _ONE
    y = np.ldexp(y.astype(np.float64), n.astype(np.int32)).astype(np.float32)
    y = np.where(x < np.float32(-87.33654), np.float32(0), y)
    return np.where(np.isnan(x), x, y)


def silu(x: F32) -> F32:
    return x / (_ONE + cephes_exp(-x))


def silu_1702(x: F32) -> F32:
    return x / (_ONE + cephes_exp(-(np.float32(1.702) * x)))


def tanh(x: F32) -> F32:
    e = cephes_exp(np.minimum(np.float32(2) * np.abs(x), np.float32(40)))
    return narrow(np.copysign(_ONE - np.float32(2) / (e + _ONE), x))


def erf(x: F32) -> F32:
    """Abramowitz and Stegun, 7.1.26."""
    a = np.abs(x)
    t = _ONE / fma(np.float32(0.3275911), a, _ONE)
    p = fma(np.float32(1.061405429), t, np.float32(-1.453152027))
    for c in (1.421413741, -0.284496736, 0.254829592):
        p = fma(p, t, np.float32(c))
    return narrow(np.copysign(_ONE - p * t * cephes_exp(-(a * a)), x))


def gelu(x: F32) -> F32:
    h = np.float32(0.5) * x
    return fma(h, erf(np.float32(0.7071067812) * x), h)


def gelu_tanh(x: F32) -> F32:
    u = np.float32(0.7978845608) * fma(np.float32(0.044715) * (x * x), x, x)
    h = np.float32(0.5) * x
    return fma(h, tanh(u), h)
