"""The primitives of the quantized mode against slow, separate renderings of docs/numerics.md."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from spola.backends.reference import arrays
from spola.backends.reference.blocks import QUANTIZED, codes, decode
from spola.backends.reference.maths import F32Maths
from spola.backends.reference.philox import philox4x32, uniform
from spola.backends.reference.quantized import QuantizedMaths, quantize_a8, quantize_a16
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from support.blocks import make_tensor

F = np.float32


def exact(x: Fraction) -> np.float32:
    """x rounded to f32 once, to nearest even, by comparing exact distances."""
    near = F(float(x))
    around = [np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf))]
    best = min(abs(Fraction(float(c)) - x) for c in around)
    ties = [c for c in around if abs(Fraction(float(c)) - x) == best]
    return next((c for c in ties if c.view(np.uint32) % 2 == 0), ties[0])


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return exact(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def lanes(x: np.ndarray, step) -> np.float32:
    out = [F(0)] * 16
    for i, value in enumerate(x):
        out[i % 16] = step(value, out[i % 16])
    for half in (8, 4, 2, 1):
        out = [out[j] + out[j + half] for j in range(half)]
    return out[0]


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 100])
def test_sum16(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n)).astype(F)
    assert arrays.sum16(x).tolist() == [lanes(row, lambda v, lane: lane + v) for row in x]
    assert arrays.sum16_squares(x).tolist() == [lanes(row, lambda v, lane: fma(v, v, lane)) for row in x]


def test_exp_and_what_is_made_of_it() -> None:
    x = np.concatenate([np.linspace(-87.3, 88, 4001), np.linspace(-1e-3, 1e-3, 101)]).astype(F)
    np.testing.assert_allclose(arrays.cephes_exp(x), np.exp(x.astype(np.float64)), rtol=2e-7)
    special = np.array([-np.inf, -88, -87.33655, 100, np.inf, 0, -0.0], F)
    top = np.exp(88.0)
    np.testing.assert_allclose(arrays.cephes_exp(special), [0, 0, 0, top, top, 1, 1], rtol=2e-7)
    assert np.isnan(arrays.cephes_exp(np.array([np.nan], F)))[0]
    y = np.linspace(-30, 30, 2001).astype(F)
    wide = y.astype(np.float64)
    np.testing.assert_allclose(arrays.silu(y), wide / (1 + np.exp(-wide)), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(arrays.tanh(y), np.tanh(wide), rtol=1e-6, atol=1e-7)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    np.testing.assert_allclose(arrays.gelu_tanh(y), 0.5 * wide * (1 + np.tanh(inner)), rtol=1e-5, atol=1e-6)
    erf = np.array([math.erf(v / math.sqrt(2)) for v in wide])
    worst = np.abs(arrays.gelu(y) - 0.5 * wide * (1 + erf)) / np.maximum(np.abs(0.5 * wide), 1e-30)
    assert worst.max() < 1e-6


def test_norms() -> None:
    rng = np.random.default_rng(5)
    x, w, b = (rng.standard_normal(s).astype(F) for s in ((4, 72), 72, 72))
    for maths in (F32Maths(), QuantizedMaths()):
        wide = x.astype(np.float64)
        rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * w
        np.testing.assert_allclose(maths.rms_norm(x, w, 1e-5), rms, rtol=1e-5, atol=1e-6)
        centred = wide - wide.mean(-1, keepdims=True)
        norm = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b
        np.testing.assert_allclose(maths.layer_norm(x, w, b, 1e-5), norm, rtol=1e-5, atol=1e-5)


def test_int8_activations() -> None:
    x = np.zeros((4, 64), F)
    x[0, :32] = np.linspace(-3, 2, 32)
    x[1, 3] = 2.0**-101
    x[2, 40] = np.inf
    x[3, 1] = np.nan
    bad = np.zeros(4, bool)
    q, d = quantize_a8(x, bad)
    assert bad.tolist() == [False, False, True, True]
    assert d[0, 0] == F(3) / F(127)
    assert q[0, 0] == -127
    assert np.abs(q[0, :32] * d[0, 0] - x[0, :32]).max() <= d[0, 0] / 2 * 1.0001
    assert not q[1:].any()
    assert not d[1:].any()


def test_int16_activations() -> None:
    x = np.zeros((4, 64), F)
    x[0] = np.linspace(-3, 2, 64)
    x[1, 3] = 2.0**-101
    x[2, 40] = np.nan
    x[3, 5], x[3, 6] = 1.0, 0.5 / 32767  # a tie, to even
    bad = np.zeros(4, bool)
    q, d = quantize_a16(x, bad)
    assert bad.tolist() == [False, False, True, False]
    assert q[0, 0] == -32767
    assert np.abs(q[0] * d[0] - x[0]).max() <= d[0] / 2 * 1.0001
    assert not q[1:3].any()
    assert q[3, 5] == 32767
    assert q[3, 6] == 0


def linear_by_hand(
    dtype: str, data: bytes, row: int, rows: int, x: np.ndarray, *, precise: bool
) -> np.float32:
    """One output element, one rounding at a time, from docs/numerics.md, section Linear layers."""
    cols = len(x)
    if dtype not in QUANTIZED:
        acc = F(0)
        for w, value in zip(decode(dtype, data, rows, cols)[row], x, strict=True):
            acc = fma(w, value, acc)
        return acc
    stored = codes(dtype, data, rows, cols)
    q, g = stored.q[row].astype(int), stored.group
    acc = F(0)
    if dtype == "Q8_0" or precise:
        amax = np.abs(x).max()
        a = np.rint(x * (F(32767) / amax)).astype(int)
        for j in range(cols // g):
            span = slice(j * g, (j + 1) * g)
            acc = fma(stored.scale[row, j], exact(Fraction(int(q[span] @ a[span]))), acc)
            if stored.min is not None:
                acc = fma(stored.min[row, j], exact(Fraction(int(a[span].sum()))), acc)
        return acc * (amax / F(32767))
    for j in range(cols // 32):
        block = x[j * 32 : j * 32 + 32]
        amax = np.abs(block).max()
        d = amax / F(127)
        a = np.rint(block * (F(127) / amax)).astype(int)
        for k in range(0, 32, g):
            group = (j * 32 + k) // g
            dot = int(q[j * 32 + k : j * 32 + k + g] @ a[k : k + g])
            acc = fma(d, stored.scale[row, group] * F(dot), acc)
            if stored.min is not None:
                acc = fma(stored.min[row, group], d * F(int(a[k : k + g].sum())), acc)
    return acc


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", sorted(QUANTIZED | {"F32", "F16", "BF16"}))
def test_linear_layers_follow_the_page(dtype: str, precise: bool) -> None:
    rng = np.random.default_rng(len(dtype))
    rows, cols = 19, 512
    data = make_tensor(dtype, rows, cols, rng)
    x = rng.standard_normal((5, cols)).astype(F) * np.array([[1], [30], [1e-3], [1], [1]], F)
    maths = QuantizedMaths(precise=precise)
    weight = maths.matrix(Tensor("w", dtype, (rows, cols), data))
    bad = np.zeros(5, bool)
    got = maths.linear(weight, x, bad)
    assert not bad.any()
    for m, n in ((0, 0), (1, 7), (2, 18), (4, 11)):
        want = linear_by_hand(dtype, data, n, rows, x[m], precise=precise)
        # An fma through f64 rounds twice; once in 2^29 that shows in the last bit.
        assert abs(int(got[m, n].view(np.int32)) - int(want.view(np.int32))) <= 1
    # Rows and outputs do not depend on what else is computed.
    np.testing.assert_array_equal(maths.linear(weight, x[3:4], np.zeros(1, bool))[0], got[3])
    # And it is that matrix: int8 and int16 activations are near the exact product.
    true = x.astype(np.float64) @ decode(dtype, data, rows, cols).astype(np.float64).T
    step = np.abs(x).max(1) / (127 if dtype in QUANTIZED else 1e5)
    bound = 4 * step[:, None] * np.linalg.norm(decode(dtype, data, rows, cols).astype(np.float64), axis=1)
    assert (np.abs(got - true) <= bound).all()


def test_many_rows_and_outputs_are_tiled() -> None:
    rng = np.random.default_rng(9)
    data = make_tensor("Q4_1", 2100, 64, rng)
    maths = QuantizedMaths()
    weight = maths.matrix(Tensor("w", "Q4_1", (2100, 64), data))
    x = rng.standard_normal((70, 64)).astype(F)
    got = maths.linear(weight, x, np.zeros(70, bool))
    for m, n in ((0, 0), (31, 1023), (32, 1024), (69, 2099), (64, 2048)):
        assert got[m, n] == pytest.approx(
            linear_by_hand("Q4_1", data, n, 2100, x[m], precise=False), rel=1e-6
        )


@pytest.mark.parametrize("maths", [F32Maths(), QuantizedMaths()])
@pytest.mark.parametrize("dtype", ["Q4_1", "F32", "Q6_K"])
def test_weights_that_are_not_finite_are_refused(maths, dtype: str) -> None:
    data = bytearray(make_tensor(dtype, 2, 256, np.random.default_rng(0)))
    data[-2:] = b"\x80\x7f" if dtype == "F32" else data[-2:]
    if dtype != "F32":
        place = {"Q4_1": 0, "Q6_K": 208}[dtype]
        data[place : place + 2] = np.float16(np.inf).tobytes()
    with pytest.raises(ModelError, match=r"tensor 'layers\.0\.mlp\.up\.weight'"):
        maths.matrix(Tensor("layers.0.mlp.up.weight", dtype, (2, 256), bytes(data)))


def test_philox_known_answers() -> None:
    """The vectors of the authors' own test file (Random123, kat_vectors)."""
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert philox4x32((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox4x32(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_uniform_is_uniform_and_differs_by_every_part() -> None:
    draws = [uniform(seed, position, 0, 0) for seed in (0, 7, 2**64 - 1) for position in range(1000)]
    assert all(0 <= u < 1 for u in draws)
    assert abs(np.mean(draws) - 0.5) < 4 / math.sqrt(12 * len(draws))
    keys = [(1, 2, 3, 0), (1 << 32, 2, 3, 0), (1, 3, 3, 0), (1, 2, 4, 0), (1, 2, 3, 1)]
    assert len({uniform(*key) for key in keys}) == len(keys)
