"""What the two modes have to provide, and the f32 mode: the definition, in plain NumPy.

The f32 mode decodes weights to f32 once and uses NumPy's own matrix product, so its last bits may depend on
how many rows share a step; the quantized mode is the invariant one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from spola.backends.reference.arrays import F32, Bool, narrow
from spola.backends.reference.batch import Batch
from spola.backends.reference.blocks import check_finite, decode
from spola.backends.reference.cache import KvCache
from spola.backends.reference.routing import route
from spola.core.errors import ModelError
from spola.core.runner import BLOCK_TOKENS, Tensor
from spola.spec.decoder import Activation, Attention, Router

__all__ = ["F32Maths", "Maths", "full_matrix", "vector"]


_SMALL = 1 << 19  # multiply-adds in one piece of a product


class Maths(Protocol):
    """The operations of a model, on f32 arrays whose first axis is rows.

    ``matrix`` packs a weight [out, in]; ``linear`` multiplies rows with it and marks rows in ``bad`` whose
    activations are not finite. ``attend`` takes rotated q [rows, heads, k_dim], not scaled, and returns
    [rows, heads, v_dim].
    """

    invariant: bool

    def matrix(self, tensor: Tensor) -> Any: ...
    def linear(self, weight: Any, x: F32, bad: Bool) -> F32: ...
    def nbytes(self, weight: Any) -> int: ...
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32: ...
    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32: ...
    def activation(self, kind: Activation) -> Callable[[F32], F32]: ...
    def sigmoid(self, x: F32) -> F32: ...
    def route(self, scores: F32, used: int, router: Router, bias: F32 | None) -> F32: ...
    def softcap(self, x: F32, cap: float) -> F32: ...
    def rotate(self, a: F32, b: F32, cos: F32, sin: F32) -> tuple[F32, F32]: ...
    def attend(
        self, a: Attention, q: F32, cache: KvCache, layer: int, batch: Batch, sinks: F32 | None
    ) -> F32: ...


def full_matrix(tensor: Tensor) -> F32:
    """A matrix decoded to f32 [rows, columns]. Raises ModelError where a value is not finite."""
    rows, cols = tensor.shape
    values = decode(tensor.dtype, tensor.data, rows, cols)
    check_finite(tensor.name, values)
    return values


def vector(tensor: Tensor) -> F32:
    """A one-dimensional tensor as f32 [n]. Raises ModelError where a value is not finite."""
    if len(tensor.shape) != 1:
        raise ModelError(f"tensor {tensor.name} has shape {list(tensor.shape)}, expected one dimension")
    values = decode(tensor.dtype, tensor.data, 1, tensor.shape[0])
    check_finite(tensor.name, values)
    return narrow(values[0])


@dataclass(frozen=True, slots=True)
class _Matrix:
    values: F32  # [out, in]


class F32Maths:
    """Weights and arithmetic in f32; means and softmax sums in f64."""

    invariant = False

    def matrix(self, tensor: Tensor) -> _Matrix:
        return _Matrix(full_matrix(tensor))

    def linear(self, weight: _Matrix, x: F32, bad: Bool) -> F32:
        return _product(x, weight.values)

    def nbytes(self, weight: _Matrix) -> int:
        return weight.values.nbytes

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        wide = x.astype(np.float64)
        scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return narrow(wide * scale * weight)

    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        scale = 1.0 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
        return narrow(centred * scale * weight + bias)

    def activation(self, kind: Activation) -> Callable[[F32], F32]:
        return _ACTIVATIONS[kind]

    def sigmoid(self, x: F32) -> F32:
        return np.float32(1) / (np.float32(1) + np.exp(-x))

    def route(self, scores: F32, used: int, router: Router, bias: F32 | None) -> F32:
        return route(scores, used, router, bias)

    def softcap(self, x: F32, cap: float) -> F32:
        return (cap * np.tanh(x / np.float32(cap))).astype(np.float32)

    def rotate(self, a: F32, b: F32, cos: F32, sin: F32) -> tuple[F32, F32]:
        return a * cos - b * sin, a * sin + b * cos

    def attend(
        self, a: Attention, q: F32, cache: KvCache, layer: int, batch: Batch, sinks: F32 | None
    ) -> F32:
        out = np.empty((batch.n_rows, a.heads, a.v_dim), np.float32)
        group, _ = cache.place[layer]
        for index in range(len(batch.first) - 1):
            rows = batch.rows(index)
            seen = batch.positions[rows]
            low = 0 if a.window is None else max(0, int(seen[0]) - a.window + 1)
            low_block, end = low // BLOCK_TOKENS, int(seen[-1]) + 1
            table = batch.tables[group][index, low_block : -(-end // BLOCK_TOKENS)]
            start = low - low_block * BLOCK_TOKENS
            k, v = (_in_order(x.decoded(), start, end - low) for x in cache.read(layer, table))
            at = np.arange(low, end)
            valid = at <= seen[:, None]
            if a.window is not None:
                valid &= at > seen[:, None] - a.window
            out[rows] = self._softmax(a, q[rows], k, v, valid, sinks)
        return out

    def _softmax(self, a: Attention, q: F32, k: F32, v: F32, valid: Bool, sinks: F32 | None) -> F32:
        """q [rows, heads, k_dim], k and v [kv heads, positions, dim], ``valid`` [rows, positions]."""
        rows, repeat = len(q), a.heads // a.kv_heads
        grouped = q.reshape(rows, a.kv_heads, repeat, a.k_dim).transpose(1, 2, 0, 3)
        scores = (grouped * np.float32(a.scale)) @ k[:, None].transpose(0, 1, 3, 2)
        if a.softcap is not None:
            scores = self.softcap(scores, a.softcap)
        scores = np.where(valid, scores, np.float32(-np.inf))
        top = scores.max(axis=-1, keepdims=True)
        sink = None if sinks is None else sinks.reshape(a.kv_heads, repeat, 1, 1)
        if sink is not None:
            top = np.maximum(top, sink)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True, dtype=np.float64)
        if sink is not None:
            total = total + np.exp(sink - top)
        out = (weights @ v[:, None]) / total
        return narrow(out.transpose(2, 0, 1, 3).reshape(rows, a.heads, a.v_dim))


def _product(x: F32, w: F32) -> F32:
    """x [rows, k] times w [out, k] transposed, in pieces too small for BLAS to start threads.

    Its threads wait for each other for ages on a busy machine. One row goes as two, since BLAS has another
    routine for vectors, with other bits and threads at any size.
    """
    if len(x) == 1:
        return _product(np.repeat(x, 2, axis=0), w)[:1]
    rows, k = 8, x.shape[1]
    width = max(_SMALL // (rows * k), 16)
    out = np.empty((len(x), len(w)), np.float32)
    for r in range(0, len(x), rows):
        for c in range(0, len(w), width):
            np.matmul(x[r : r + rows], w[c : c + width].T, out=out[r : r + rows, c : c + width])
    return out


def _in_order(blocks: F32, start: int, count: int) -> F32:
    """[blocks, kv heads, 32, dim] as [kv heads, count, dim], from position ``start`` of the first block."""
    heads, dim = blocks.shape[1], blocks.shape[3]
    return blocks.transpose(1, 0, 2, 3).reshape(heads, -1, dim)[:, start : start + count]


def _erf_gelu(x: F32) -> F32:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return narrow(0.5 * x * (1.0 + erf(x / math.sqrt(2.0))))


def _silu(x: F32) -> F32:
    return x / (np.float32(1) + np.exp(-x))


def _silu_1702(x: F32) -> F32:
    return x / (np.float32(1) + np.exp(-(np.float32(1.702) * x)))


def _gelu_tanh(x: F32) -> F32:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)
    return (0.5 * x * (1.0 + np.tanh(inner))).astype(np.float32)


def _relu(x: F32) -> F32:
    return np.maximum(x, np.float32(0))


def _relu2(x: F32) -> F32:
    return _relu(x) ** 2


_ACTIVATIONS: dict[Activation, Callable[[F32], F32]] = {
    "silu": _silu,
    "gelu": _erf_gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
    "silu_1702": _silu_1702,
}
