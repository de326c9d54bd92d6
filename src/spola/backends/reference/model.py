"""A DecoderSpec with its weights: from a batch of tokens to hidden states, and from those to logits.

Interprets the spec part by part; what it does not implement is refused by name at load. All arithmetic is the
mode's (``maths``), all memory of earlier tokens the cache's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from spola.backends.reference.adapters import Adapters, low_rank_f32, low_rank_in_order
from spola.backends.reference.arrays import F32, F64, Bool, Ints
from spola.backends.reference.batch import Batch
from spola.backends.reference.blocks import check_finite, decode
from spola.backends.reference.cache import KvCache
from spola.backends.reference.maths import Maths, vector
from spola.core.dtype import BY_NAME, nbytes
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    LatentAttention,
    Layer,
    LayerNorm,
    LearnedPositions,
    MoeMlp,
    NoPositions,
    Norm,
    RmsNorm,
    Rope,
)
from spola.spec.manifest import TensorInfo, manifest
from spola.spec.rope import factors_tensor, inverse_frequencies

__all__ = ["Model"]


@dataclass(frozen=True, slots=True)
class _Table:
    """A matrix looked up by row, as stored: ``data`` uint8 [rows, bytes of a row]."""

    dtype: str
    data: Ints
    columns: int

    def rows(self, ids: Ints) -> F32:
        return decode(self.dtype, self.data[ids].tobytes(), len(ids), self.columns)


class Model:
    """Weights and forward pass. ``vocab`` and ``hidden`` are the spec's."""

    def __init__(
        self, spec: DecoderSpec, tensors: Iterable[Tensor], maths: Maths, cache: KvCache, max_model_len: int
    ) -> None:
        """Take the weights in. Raises ModelError naming the part, or the tensor, at fault."""
        _check_parts(spec, maths)
        self.spec, self.vocab, self.hidden = spec, spec.vocab, spec.hidden
        self._maths, self._cache, self._max_len = maths, cache, max_model_len
        self._tables: dict[str, _Table] = {}
        self._matrices: dict[str, Any] = {}
        self._vectors: dict[str, F32] = {}
        wanted = {info.name: info for info in manifest(spec)}
        for tensor in tensors:
            if tensor.name not in wanted:
                raise ModelError(f"tensor {tensor.name} is not part of this model, or came twice")
            self._take(tensor, wanted.pop(tensor.name))
        missing = next((info.name for info in wanted.values() if info.required), None)
        if missing is not None:
            raise ModelError(f"tensor {missing} is missing")
        self._ropes: dict[Rope, tuple[F64, float]] = {}
        self.adapters = Adapters(low_rank_in_order if maths.invariant else low_rank_f32)

    @property
    def nbytes(self) -> int:
        """Bytes that the unpacked weights take here."""
        tables = sum(t.data.nbytes for t in self._tables.values())
        matrices = sum(self._maths.nbytes(m) for m in self._matrices.values())
        return tables + matrices + sum(v.nbytes for v in self._vectors.values())

    def hidden_states(self, batch: Batch, bad: Bool) -> F32:
        """Run all layers over ``batch`` [rows, hidden], writing the cache; no final norm.

        Marks in ``bad`` [rows] those whose activations are not finite.
        """
        spec = self.spec
        x = self._tables["embedding.weight"].rows(batch.ids)
        if spec.embedding_scale != 1.0:
            x = x * np.float32(spec.embedding_scale)
        if isinstance(spec.positions, LearnedPositions):
            x = x + self._tables["positions.weight"].rows(batch.positions + spec.positions.offset)
        if spec.embedding_norm is not None:
            x = self._norm("embedding_norm", spec.embedding_norm, x)
        turns: dict[Rope, tuple[F32, F32]] = {}
        for index, layer in enumerate(spec.layers):
            x = self._layer(index, layer, x, batch, turns, bad)
        return x

    def final_norm(self, x: F32) -> F32:
        norm = self.spec.final_norm
        return x if norm is None else self._norm("final_norm", norm, x)

    def logits(self, normed: F32, bad: Bool) -> F32:
        """f32 [rows, vocab] of rows that went through ``final_norm``."""
        head = self.spec.head
        out = self._maths.linear(self._matrices["embedding" if head.tied else "head"], normed, bad)
        if head.bias:
            out = out + self._vectors["head.bias"]
        if head.scale != 1.0:
            out = np.float32(head.scale) * out
        return out if head.softcap is None else self._maths.softcap(out, head.softcap)

    # --- loading ---------------------------------------------------------------------------------

    def _take(self, tensor: Tensor, info: TensorInfo) -> None:
        if tuple(tensor.shape) != info.shape:
            raise ModelError(
                f"tensor {tensor.name} has shape {list(tensor.shape)}, expected {list(info.shape)}"
            )
        stem = tensor.name.removesuffix(".weight")
        if len(info.shape) == 1:
            self._vectors[tensor.name] = vector(tensor)
            return
        if info.role in ("embedding", "positions"):
            size = nbytes(BY_NAME[tensor.dtype], tensor.shape[1])
            data = np.frombuffer(tensor.data, np.uint8).reshape(-1, size).copy()
            self._tables[tensor.name] = _Table(tensor.dtype, data, tensor.shape[1])
            if info.role == "positions" or not self.spec.head.tied:
                _check_table(tensor.name, self._tables[tensor.name])
                return
        if info.role == "expert_bias":
            for expert, part in enumerate(_apart(tensor)):
                self._vectors[f"{stem.removesuffix('.bias')}.{expert}.bias"] = vector(part)
            return
        if info.role in ("experts", "heads"):
            for expert, matrix in enumerate(_apart(tensor)):
                self._matrices[f"{stem}.{expert}"] = self._maths.matrix(matrix)
            return
        self._matrices[stem] = self._maths.matrix(tensor)

    # --- one layer -------------------------------------------------------------------------------

    def _layer(
        self, index: int, layer: Layer, x: F32, batch: Batch, turns: dict[Rope, tuple[F32, F32]], bad: Bool
    ) -> F32:
        name = f"layers.{index}."
        h = self._optional(f"{name}pre_attention_norm", layer.pre_attention_norm, x)
        match layer.attention:
            case Attention() as attention:
                y = self._attention(index, attention, h, batch, turns, bad)
            case LatentAttention() as latent:
                y = self._latent(index, latent, h, batch, turns, bad)
        y = self._optional(f"{name}post_attention_norm", layer.post_attention_norm, y)
        after = _add(x, y, layer.residual_scale)
        if layer.residual == "serial":
            h = self._optional(f"{name}pre_mlp_norm", layer.pre_mlp_norm, after)
        elif layer.pre_mlp_norm is not None:
            h = self._norm(f"{name}pre_mlp_norm", layer.pre_mlp_norm, x)
        match layer.mlp:
            case DenseMlp() as mlp:
                y = self._mlp(f"{name}mlp.", mlp, h, bad)
            case MoeMlp() as moe:
                y = self._moe(f"{name}mlp.", moe, h, bad)
        y = self._optional(f"{name}post_mlp_norm", layer.post_mlp_norm, y)
        return _add(after, y, layer.residual_scale)

    def _attention(
        self, index: int, a: Attention, h: F32, batch: Batch, turns: dict[Rope, tuple[F32, F32]], bad: Bool
    ) -> F32:
        name, n = f"layers.{index}.attention.", len(h)
        q = self._linear(f"{name}q", h, a.qkv_bias, bad).reshape(n, a.heads, a.k_dim)
        k = self._linear(f"{name}k", h, a.qkv_bias, bad).reshape(n, a.kv_heads, a.k_dim)
        v = self._linear(f"{name}v", h, a.qkv_bias, bad).reshape(n, a.kv_heads, a.v_dim)
        if a.q_norm is not None:
            q = self._head_norm(f"{name}q_norm", a, a.q_norm, q)
        if a.k_norm is not None:
            k = self._head_norm(f"{name}k_norm", a, a.k_norm, k)
        if isinstance(a.positions, Rope):
            if a.positions not in turns:
                turns[a.positions] = self._turns(a.positions, batch.positions)
            q = self._rotate(a.positions, q, turns[a.positions])
            k = self._rotate(a.positions, k, turns[a.positions])
        self._cache.write(index, batch, k, v)
        sinks = self._vectors[f"{name}sinks"] if a.sinks else None
        out = self._maths.attend(a, q, self._cache, index, batch, sinks)
        return self._linear(f"{name}o", out.reshape(n, -1), a.out_bias, bad)

    def _latent(
        self,
        index: int,
        a: LatentAttention,
        h: F32,
        batch: Batch,
        turns: dict[Rope, tuple[F32, F32]],
        bad: Bool,
    ) -> F32:
        """Attention in the latent space: every head's query goes there, and its result comes back."""
        name, n = f"layers.{index}.attention.", len(h)
        if a.q_rank is None:
            q = self._linear(f"{name}q", h, False, bad)
        else:
            low = self._norm(f"{name}q_a_norm", a.norm, self._linear(f"{name}q_a", h, False, bad))
            q = self._linear(f"{name}q_b", low, False, bad)
        q = q.reshape(n, a.heads, a.q_dim)
        kv = self._linear(f"{name}kv_a", h, False, bad)
        latent = self._norm(f"{name}kv_a_norm", a.norm, kv[:, : a.kv_rank])
        k_turned, q_turned = kv[:, None, a.kv_rank :], q[..., a.nope_dim :]
        if isinstance(a.positions, Rope):
            if a.positions not in turns:
                turns[a.positions] = self._turns(a.positions, batch.positions)
            k_turned = self._rotate(a.positions, k_turned, turns[a.positions])
            q_turned = self._rotate(a.positions, q_turned, turns[a.positions])
        inner = self._per_head(f"{name}k_b", q[..., : a.nope_dim], bad)
        self._cache.write(index, batch, np.concatenate([latent[:, None], k_turned], axis=-1), None)
        query = np.concatenate([inner, q_turned], axis=-1)
        out = self._maths.attend(a.absorbed, query, self._cache, index, batch, None)
        values = self._per_head(f"{name}v_b", out, bad)
        return self._linear(f"{name}o", values.reshape(n, -1), False, bad)

    def _per_head(self, name: str, x: F32, bad: Bool) -> F32:
        """x [rows, heads, in] through each head's own matrix: [rows, heads, out]."""
        heads = [
            self._maths.linear(self._matrices[f"{name}.{i}"], np.ascontiguousarray(x[:, i]), bad)
            for i in range(x.shape[1])
        ]
        return np.stack(heads, axis=1)

    def _mlp(self, name: str, m: DenseMlp, h: F32, bad: Bool) -> F32:
        up = self._linear(f"{name}up", h, m.bias, bad)
        if m.gated:
            inner = self._gated(m, self._linear(f"{name}gate", h, m.bias, bad), up)
        else:
            inner = self._maths.activation(m.activation)(up)
        return self._linear(f"{name}down", inner, m.bias, bad)

    def _gated(self, m: DenseMlp, gate: F32, up: F32) -> F32:
        if m.clamp is not None:
            limit = np.float32(m.clamp)
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        if m.up_offset:
            up = up + np.float32(m.up_offset)
        return self._maths.activation(m.activation)(gate) * up

    def _moe(self, name: str, m: MoeMlp, h: F32, bad: Bool) -> F32:
        """The sum over each row's experts, added in the order of their numbers, then the shared expert."""
        scores = self._linear(f"{name}router", h, m.router.bias, bad)
        bias = self._vectors[f"{name}selection.bias"] if m.router.selection_bias else None
        weights = self._maths.route(scores, m.used, m.router, bias)
        out = np.zeros_like(h)
        for expert in np.unique(np.nonzero(weights)[1]):
            rows = np.nonzero(weights[:, expert])[0]
            wrong = np.zeros(len(rows), np.bool_)

            def linear(part: str, x: F32, e: int = int(expert), wrong: Bool = wrong) -> F32:
                return self._linear(f"{name}experts.{part}.{e}", x, m.expert.bias, wrong)

            inner = self._gated(m.expert, linear("gate", h[rows]), linear("up", h[rows]))
            out[rows] += weights[rows, expert, None] * linear("down", inner)
            bad[rows] |= wrong
        if m.shared is None:
            return out
        shared = self._mlp(f"{name}shared.", m.shared, h, bad)
        if m.shared_gate:
            gate = self._linear(f"{name}shared_gate", h, False, bad)
            shared = shared * self._maths.sigmoid(gate)
        return out + shared

    def _linear(self, name: str, x: F32, bias: bool, bad: Bool) -> F32:
        y = self._maths.linear(self._matrices[name], x, bad)
        for rows, delta in self.adapters.deltas(name, x):
            y[rows] += delta
        return y + self._vectors[f"{name}.bias"] if bias else y

    def _optional(self, name: str, norm: Norm | None, x: F32) -> F32:
        return x if norm is None else self._norm(name, norm, x)

    def _norm(self, name: str, norm: Norm, x: F32) -> F32:
        match norm:
            case RmsNorm(eps=eps, offset=offset):
                weight = self._vectors[f"{name}.weight"]
                return self._maths.rms_norm(x, weight + np.float32(offset) if offset else weight, eps)
            case LayerNorm(eps=eps):
                n = x.shape[-1]
                weight = self._vectors[f"{name}.weight"] if norm.weight else np.ones(n, np.float32)
                bias = self._vectors[f"{name}.bias"] if norm.bias else np.zeros(n, np.float32)
                return self._maths.layer_norm(x, weight, bias, eps)

    def _head_norm(self, name: str, a: Attention, norm: Norm, x: F32) -> F32:
        if a.qk_norm_span == "head":
            return self._norm(name, norm, x)
        return self._norm(name, norm, x.reshape(len(x), -1)).reshape(x.shape)

    # --- rope ------------------------------------------------------------------------------------

    def _turns(self, rope: Rope, positions: Ints) -> tuple[F32, F32]:
        """cos and sin, f32 [rows, 1, dim / 2]: angles, functions and the factor in f64, then rounded."""
        if rope not in self._ropes:
            frequencies, factor = inverse_frequencies(rope, self._max_len)
            turns = np.array(frequencies, np.float64)
            factors = factors_tensor(rope, self._max_len)
            if factors is not None:
                turns = turns / self._vectors[factors].astype(np.float64)
            self._ropes[rope] = turns, factor
        turns, factor = self._ropes[rope]
        angles = positions[:, None, None].astype(np.float64) * turns
        return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)

    def _rotate(self, rope: Rope, x: F32, turns: tuple[F32, F32]) -> F32:
        half = rope.dim // 2
        if rope.layout == "interleaved":
            first, second = slice(0, rope.dim, 2), slice(1, rope.dim, 2)
        else:
            first, second = slice(0, half), slice(half, rope.dim)
        out = x.copy()
        out[..., first], out[..., second] = self._maths.rotate(x[..., first], x[..., second], *turns)
        return out


def _apart(tensor: Tensor) -> Iterator[Tensor]:
    """The matrices of a stack [experts, rows, columns], or the vectors of one [experts, n], one by one."""
    experts, *shape = tensor.shape
    size = nbytes(BY_NAME[tensor.dtype], math.prod(shape))
    data = memoryview(tensor.data)
    for e in range(experts):
        part = data[e * size : (e + 1) * size]
        yield Tensor(f"{tensor.name} of expert {e}", tensor.dtype, tuple(shape), part)


def _add(x: F32, y: F32, scale: float) -> F32:
    return x + y if scale == 1.0 else x + np.float32(scale) * y


def _check_table(name: str, table: _Table) -> None:
    for start in range(0, len(table.data), 4096):  # in parts: a vocabulary in f32 would be large
        check_finite(name, table.rows(np.arange(start, min(start + 4096, len(table.data)))))


def _check_parts(spec: DecoderSpec, maths: Maths) -> None:
    """Refuse by name what ``Model`` does not compute."""

    def refuse(index: int, what: str) -> None:
        raise ModelError(f"layer {index}: the reference backend does not support {what}")

    for index, layer in enumerate(spec.layers):
        match layer.attention:
            case (
                Attention(positions=Rope() | NoPositions())
                | LatentAttention(positions=Rope() | NoPositions())
            ):
                pass
            case Attention(positions=positions) | LatentAttention(positions=positions):
                refuse(index, f"{type(positions).__name__} positions in attention")
        match layer.mlp:
            case DenseMlp(gated=False, clamp=float()):
                refuse(index, "a clamped activation without a gate")
            case DenseMlp(activation=activation):
                maths.activation(activation)
            case MoeMlp(expert=DenseMlp(activation=activation)):
                maths.activation(activation)
