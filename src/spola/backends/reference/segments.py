"""Attention of the quantized mode: blocks of 32 positions, segments of 256, merged in ascending order.

Both lie at absolute multiples, so a row's result depends on nothing but its own position and the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spola.backends.reference.arrays import F32, F64, Accumulator, Bool, Ints, cephes_exp, fma, sum16
from spola.backends.reference.batch import Batch
from spola.backends.reference.cache import Cached, KvCache
from spola.core.runner import BLOCK_TOKENS, KV_GROUP, SEGMENT_TOKENS
from spola.spec.decoder import Attention

__all__ = ["attend"]

_TILE_ROWS = 64
_SEGMENT_BLOCKS = SEGMENT_TOKENS // BLOCK_TOKENS

Bend = Callable[[F32], F32] | None


@dataclass(slots=True)
class _Partial:
    """Softmax state of n rows: ``m`` and ``l`` [n, kv heads, repeat], ``o`` [n, kv heads, repeat, v_dim]."""

    m: F32
    l: F32  # noqa: E741 - the name that the page and the papers use
    o: F32

    @classmethod
    def empty(cls, n: int, a: Attention) -> _Partial:
        shape = (n, a.kv_heads, a.heads // a.kv_heads)
        zeros = np.zeros(shape, np.float32)
        return cls(np.full(shape, -np.inf, np.float32), zeros, np.zeros((*shape, a.v_dim), np.float32))

    def take(self, rows: Ints) -> _Partial:
        return _Partial(self.m[rows], self.l[rows], self.o[rows])

    def put(self, rows: Ints, part: _Partial) -> None:
        self.m[rows], self.l[rows], self.o[rows] = part.m, part.l, part.o


def attend(
    a: Attention, q: F32, cache: KvCache, layer: int, batch: Batch, sinks: F32 | None, bend: Bend
) -> F32:
    """Rotated q [rows, heads, k_dim] with the cache: f32 [rows, heads, v_dim]. ``bend`` is the soft cap."""
    out = np.empty((batch.n_rows, a.heads, a.v_dim), np.float32)
    group, _ = cache.place[layer]
    scaled = q * np.float32(a.scale)
    for start in range(0, batch.n_rows, _TILE_ROWS):
        rows = slice(start, start + _TILE_ROWS)
        table = batch.tables[group][batch.slice_of[rows]]
        walk = _Walk(a, scaled[rows], cache, layer, table, batch.positions[rows], bend)
        out[rows] = walk.run(sinks)
    return out


class _Walk:
    """One tile of rows on its way through the blocks."""

    def __init__(
        self, a: Attention, q: F32, cache: KvCache, layer: int, table: Ints, at: Ints, bend: Bend
    ) -> None:
        self.a, self.cache, self.layer, self.table, self.high, self.bend = a, cache, layer, table, at, bend
        self.low = np.zeros_like(at) if a.window is None else np.maximum(at - a.window + 1, 0)
        grouped = q.reshape(len(q), a.kv_heads, a.heads // a.kv_heads, a.k_dim, 1)
        self.q = np.moveaxis(grouped, 3, 0).astype(np.float64)  # [k_dim, rows, kv heads, repeat, 1]

    def run(self, sinks: F32 | None) -> F32:
        a, n = self.a, len(self.high)
        total = _Partial.empty(n, a)
        for segment in range(
            int(self.low.min()) // SEGMENT_TOKENS, int(self.high.max()) // SEGMENT_TOKENS + 1
        ):
            rows = self._reaching(segment, SEGMENT_TOKENS)
            part = _Partial.empty(n, a)
            for block in range(segment * _SEGMENT_BLOCKS, (segment + 1) * _SEGMENT_BLOCKS):
                some = self._reaching(block, BLOCK_TOKENS)
                if len(some):
                    part.put(some, self._block(block, some, part.take(some)))
            total.put(rows, _merge(total.take(rows), part.take(rows)))
        if sinks is not None:
            shape = total.m.shape
            sink = np.broadcast_to(sinks.reshape(shape[1:]), shape)
            nothing = np.zeros_like(total.o)
            total = _merge(total, _Partial(sink, np.ones(shape, np.float32), nothing))
        out = total.o * (np.float32(1) / total.l)[..., None]
        return out.reshape(n, a.heads, a.v_dim)

    def _reaching(self, index: int, size: int) -> Ints:
        """Rows that see a position of the ``index``-th stretch of ``size`` positions."""
        return np.nonzero((self.low // size <= index) & (index <= self.high // size))[0]

    def _block(self, block: int, rows: Ints, part: _Partial) -> _Partial:
        k, v = self.cache.read(self.layer, self.table[rows, block])
        at = block * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)
        valid = (at >= self.low[rows, None]) & (at <= self.high[rows, None])
        scores = self._scores(rows, k)
        if self.bend is not None:
            scores = self.bend(scores)
        lanes = valid[:, None, None, :]
        scores = np.where(lanes, scores, np.float32(-np.inf))
        m = np.maximum(part.m, scores.max(axis=-1))
        corr = cephes_exp(part.m - m)
        e = np.where(lanes, cephes_exp(scores - m[..., None]), np.float32(0))
        return _Partial(m, fma(part.l, corr, sum16(e)), _weigh(part.o * corr[..., None], e, v, valid))

    def _scores(self, rows: Ints, k: Cached) -> F32:
        """q.k of ``rows`` against one block, k [n, kv heads, 32, k_dim]: [n, kv heads, repeat, 32]."""
        by_dim = np.moveaxis(k.values, 3, 0)[:, :, :, None, :].astype(np.float64)
        q = self.q[:, rows]
        if k.scale is None:
            return self._dot(q, by_dim)
        scores: F32 = np.float32(0)  # type: ignore[assignment]
        for g, at in enumerate(range(0, len(q), KV_GROUP)):
            group = self._dot(q[at : at + KV_GROUP], by_dim[at : at + KV_GROUP])
            scores = fma(k.scale[:, :, None, :, g], group, scores)
        return scores

    def _dot(self, q: F64, k: F64) -> F32:
        """Sums over the first axis, ascending from +0; q [d, n, heads, repeat, 1], k [d, n, heads, 1, 32]."""
        total = Accumulator(np.zeros((*q.shape[1:-1], BLOCK_TOKENS), np.float32))
        for x, column in zip(q, k, strict=True):
            total.add(x * column)
        return total.value


def _weigh(o: F32, e: F32, v: Cached, valid: Bool) -> F32:
    """o += e_t * v_t over ascending t; v [n, kv heads, 32, v_dim]. A lane that is not valid adds +0."""
    lanes = valid[:, None, :, None]
    known = np.where(lanes, v.values, np.float32(0))
    by_time = np.moveaxis(known, 2, 0)[:, :, :, None, :].astype(np.float64)
    weights = np.moveaxis(e, 3, 0)[..., None]
    if v.scale is not None:  # scales go into the weights, each rounded once
        scale = np.repeat(np.where(lanes, v.scale, np.float32(0)), KV_GROUP, axis=-1)
        weights = weights * np.moveaxis(scale[..., : o.shape[-1]], 2, 0)[:, :, :, None, :]
    total = Accumulator(o)
    for weight, row in zip(weights.astype(np.float64), by_time, strict=True):
        total.add(weight * row)
    return total.value


def _merge(x: _Partial, y: _Partial) -> _Partial:
    m = np.maximum(x.m, y.m)
    a, b = cephes_exp(x.m - m), cephes_exp(y.m - m)
    o = fma(x.o, a[..., None], y.o * b[..., None])
    return _Partial(m, fma(x.l, a, y.l * b), o)
