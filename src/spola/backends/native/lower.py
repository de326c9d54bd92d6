"""DecoderSpec -> op records of the native decoder, once, at load.

What is not lowered here, ``supported`` refuses by name before any tensor is read. The records themselves are
native/src/decoder/program.h; arithmetic is docs/numerics.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from spola import _native
from spola.backends.native.tensors import Tensors
from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.core.runner import KvGroup, RunnerConfig
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    LatentAttention,
    Layer,
    LayerNorm,
    LearnedPositions,
    MoeMlp,
    Norm,
    RmsNorm,
    Rope,
)
from spola.spec.manifest import manifest
from spola.spec.rope import factors_tensor, inverse_frequencies

__all__ = ["lower"]

# program.h: Buffer, NormKind, Epilogue, Rows, kNoId
_RESIDUAL, _QKV, _ATTENTION, _HIDDEN, _BRANCH, _ROUTER, _EXPERT = 0, 1, 2, 3, 4, 7, 8
_LATENT = 9
_NO_NORM, _RMS, _LAYER = 0, 1, 2
_STORE, _ADD = 0, 1
_ACTIVATIONS = {"silu": 2, "gelu_tanh": 3, "relu": 4, "relu2": 5, "gelu": 6, "silu_1702": 7}
_GATHER, _SLOTS = 1, 2
_NONE = -1

_NormRecord = tuple[int, int, int, float]
_Part = tuple[int, int, int, int]  # matrix, bias, first column, site of adapters


def lower(
    spec: DecoderSpec, config: RunnerConfig, decoder: _native.Decoder, tensors: Tensors
) -> Mapping[str, int]:
    """Append the whole program of ``spec`` (which ``supported.check`` has passed) to ``decoder``.

    Gives the sites of adapters by tensor name, none unless ``config`` has room for them. Raises ModelError
    when a KV group of ``config`` does not hold what a layer needs.
    """
    program = _Program(spec, config, decoder, tensors)
    if config.max_lora_rank:
        program.make_sites()
    program.embed()
    for index, layer in enumerate(spec.layers):
        program.attention(layer, index)
        program.mlp(layer, index)
    head = spec.head
    decoder.head(
        program.norm(spec.final_norm, "final_norm", spec.hidden),
        tensors.matrices["embedding.weight" if head.tied else "head.weight"],
        tensors.vectors["head.bias"] if head.bias else _NONE,
        head.scale,
        head.softcap or 0.0,
    )
    return program.sites


class _Program:
    """Appends layers; remembers rope tables and constant vectors that layers share."""

    def __init__(
        self, spec: DecoderSpec, config: RunnerConfig, decoder: _native.Decoder, tensors: Tensors
    ) -> None:
        self.spec = spec
        self.config = config
        self.decoder = decoder
        self.tensors = tensors
        self.sites: dict[str, int] = {}
        self.ropes: dict[Rope, int] = {}
        self.constants: dict[tuple[float, int], int] = {}

    def norm(self, norm: Norm | None, name: str, width: int) -> _NormRecord:
        vectors = self.tensors.vectors
        match norm:
            case None:
                return (_NO_NORM, _NONE, _NONE, 0.0)
            case RmsNorm(eps=eps):
                return (_RMS, vectors[f"{name}.weight"], _NONE, eps)
            case LayerNorm(eps=eps, weight=weight, bias=bias):
                w = vectors[f"{name}.weight"] if weight else self._constant(1.0, width)
                b = vectors[f"{name}.bias"] if bias else self._constant(0.0, width)
                return (_LAYER, w, b, eps)

    def make_sites(self) -> None:
        for info in manifest(self.spec):
            if info.role == "linear":
                self.sites[info.name] = self.decoder.add_site(*info.shape)

    def embed(self) -> None:
        spec, table, offset = self.spec, _NONE, 0
        if isinstance(spec.positions, LearnedPositions):
            table, offset = self.tensors.matrices["positions.weight"], spec.positions.offset
        self.decoder.embed(self.tensors.matrices["embedding.weight"], spec.embedding_scale, table, offset)
        if spec.embedding_norm is not None:
            norm = self.norm(spec.embedding_norm, "embedding_norm", spec.hidden)
            self.decoder.residual(_RESIDUAL, norm, 1.0)

    def _constant(self, value: float, width: int) -> int:
        if (value, width) not in self.constants:
            data = array("f", [value]) * width
            f32 = BY_NAME["F32"].gguf_id
            self.constants[value, width] = self.decoder.add_vector("constant", f32, width, data, 0.0)
        return self.constants[value, width]

    def _rope(self, positions: Rope) -> int:
        if positions not in self.ropes:
            frequencies, factor = inverse_frequencies(positions, self.config.max_model_len)
            factors = factors_tensor(positions, self.config.max_model_len)
            if factors is not None:
                divisors = self.tensors.factors[factors]
                frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
            interleaved = positions.layout == "interleaved"
            self.ropes[positions] = self.decoder.add_rope(frequencies, factor, interleaved)
        return self.ropes[positions]

    def _parts(self, prefix: str, rows: Mapping[str, int], bias: bool) -> list[_Part]:
        """Matrices that share an input, their outputs side by side: (matrix, bias, first column)."""
        parts, column = [], 0
        for name, n in rows.items():
            vector = self.tensors.vectors[f"{prefix}{name}.bias"] if bias else _NONE
            site = self.sites.get(f"{prefix}{name}.weight", _NONE)
            parts.append((self.tensors.matrices[f"{prefix}{name}.weight"], vector, column, site))
            column += n
        return parts

    def attention(self, layer: Layer, index: int) -> None:
        a = layer.attention
        if isinstance(a, LatentAttention):
            self._latent(a, layer, index)
            return
        group, position = _kv_position(self.config.kv_groups, a, index)
        prefix, hidden = f"layers.{index}.", self.spec.hidden
        rows = {
            "attention.q": a.heads * a.k_dim,
            "attention.k": a.kv_heads * a.k_dim,
            "attention.v": a.kv_heads * a.v_dim,
        }
        qkv = self._parts(prefix, rows, a.qkv_bias)
        self._prepare(layer.pre_attention_norm, f"{prefix}pre_attention_norm", qkv)
        self._product(qkv, _QKV, sum(rows.values()), _STORE, 1.0)
        whole = a.qk_norm_span == "whole"
        self.decoder.attention(
            group=group,
            layer=position,
            heads=a.heads,
            scale=a.scale,
            softcap=a.softcap or 0.0,
            rope=self._rope(a.positions) if isinstance(a.positions, Rope) else _NONE,
            q_norm=self.norm(a.q_norm, f"{prefix}attention.q_norm", a.k_dim * (a.heads if whole else 1)),
            k_norm=self.norm(a.k_norm, f"{prefix}attention.k_norm", a.k_dim * (a.kv_heads if whole else 1)),
            norm_whole=whole,
            sinks=self.tensors.vectors[f"{prefix}attention.sinks"] if a.sinks else _NONE,
        )
        out = self._parts(prefix, {"attention.o": hidden}, a.out_bias)
        if layer.residual == "parallel":  # the MLP still needs the residual stream as it was
            self._linear(_ATTENTION, a.heads * a.v_dim, out, _BRANCH, 1.0)
        else:
            self._close(
                _ATTENTION,
                a.heads * a.v_dim,
                out,
                layer,
                layer.post_attention_norm,
                f"{prefix}post_attention_norm",
            )

    def _latent(self, a: LatentAttention, layer: Layer, index: int) -> None:
        """Queries into the latent space by head, attention there, and its results back by head."""
        inner = a.absorbed
        group, position = _kv_position(self.config.kv_groups, inner, index, latent=True)
        prefix, hidden = f"layers.{index}.", self.spec.hidden
        name = f"{prefix}attention."
        matrices, first = self.tensors.matrices, "q" if a.q_rank is None else "q_a"
        queries = a.heads * a.q_dim
        column = queries if a.q_rank is None else a.q_rank
        width = column + inner.k_dim
        low = self._parts(name, {first: column, "kv_a": inner.k_dim}, False)
        self._prepare(layer.pre_attention_norm, f"{prefix}pre_attention_norm", low)
        self._product(low, _LATENT, width, _STORE, 1.0)
        q, stride = _LATENT, width
        if a.q_rank is not None:
            q, stride = _ATTENTION, queries
            up = self._parts(name, {"q_b": queries}, False)
            norm = self.norm(a.norm, f"{name}q_a_norm", a.q_rank)
            self._prepare_part(_LATENT, width, a.q_rank, norm, up[0][0], 0, 0)
            self._product(up, q, queries, _STORE, 1.0)
        none = self.norm(None, "", 0)
        k_b, v_b = matrices[f"{name}k_b.weight"], matrices[f"{name}v_b.weight"]
        self._prepare_part(q, stride, a.nope_dim, none, k_b, a.heads, a.q_dim)
        self.decoder.heads(
            count=a.heads, matrix=k_b, output=_QKV, width=a.heads * inner.k_dim, step=inner.k_dim
        )
        self.decoder.latent(
            group=group,
            layer=position,
            heads=a.heads,
            scale=a.scale,
            rope=self._rope(a.positions) if isinstance(a.positions, Rope) else _NONE,
            norm=self.norm(a.norm, f"{name}kv_a_norm", a.kv_rank),
            q=q,
            q_dim=a.q_dim,
            q_stride=stride,
            kv_column=column,
            kv_stride=width,
        )
        self._prepare_part(_ATTENTION, a.heads * a.kv_rank, a.kv_rank, none, v_b, a.heads, a.kv_rank)
        self.decoder.heads(count=a.heads, matrix=v_b, output=_QKV, width=a.heads * a.v_dim, step=a.v_dim)
        out = self._parts(name, {"o": hidden}, False)
        post = f"{prefix}post_attention_norm"
        self._close(_QKV, a.heads * a.v_dim, out, layer, layer.post_attention_norm, post)

    def _prepare_part(
        self, source: int, stride: int, width: int, norm: _NormRecord, matrix: int, heads: int, step: int
    ) -> None:
        """For ``matrix``: of each row of ``source`` the first ``width`` columns, or those of each head."""
        self.decoder.prepare_part(
            input=source, stride=stride, width=width, norm=norm, consumers=[matrix], heads=heads, step=step
        )

    def mlp(self, layer: Layer, index: int) -> None:
        m = layer.mlp
        prefix, hidden = f"layers.{index}.", self.spec.hidden
        if isinstance(m, MoeMlp):
            self._moe(m, layer, prefix)
            return
        names = {"mlp.gate": 0, "mlp.up": 0} if m.gated else {"mlp.up": 0}
        inner = [(matrix, bias, 0, site) for matrix, bias, _, site in self._parts(prefix, names, m.bias)]
        if layer.residual == "parallel" and layer.pre_mlp_norm is None:
            self._prepare(layer.pre_attention_norm, f"{prefix}pre_attention_norm", inner)
        else:
            self._prepare(layer.pre_mlp_norm, f"{prefix}pre_mlp_norm", inner)
        bounds = (m.clamp or 0.0, m.up_offset)
        self._product(inner, _HIDDEN, m.ff, _ACTIVATIONS[m.activation], 1.0, *bounds)
        if layer.residual == "parallel":
            norm = self.norm(layer.post_attention_norm, f"{prefix}post_attention_norm", hidden)
            self.decoder.residual(_BRANCH, norm, layer.residual_scale)
        down = self._parts(prefix, {"mlp.down": hidden}, m.bias)
        self._close(_HIDDEN, m.ff, down, layer, layer.post_mlp_norm, f"{prefix}post_mlp_norm")

    def _moe(self, m: MoeMlp, layer: Layer, prefix: str) -> None:
        """Experts and the shared expert, summed up in the branch buffer, then into the residual stream."""
        matrices, hidden, ff = self.tensors.matrices, self.spec.hidden, m.expert.ff
        name, mlp = f"{prefix}pre_mlp_norm", f"{prefix}mlp."
        bias = self.tensors.vectors[f"{mlp}router.bias"] if m.router.bias else _NONE
        router = [(matrices[f"{mlp}router.weight"], bias, 0, _NONE)]
        if m.shared_gate:
            router.append((matrices[f"{mlp}shared_gate.weight"], _NONE, m.experts, _NONE))
        width = m.experts + m.shared_gate
        self._prepare(layer.pre_mlp_norm, name, router)
        self.decoder.linear(router, _ROUTER, width, _STORE, 1.0)
        r = m.router
        selection = self.tensors.vectors[f"{mlp}selection.bias"] if r.selection_bias else _NONE
        sigmoid = r.scoring == "sigmoid"
        self.decoder.route(
            m.experts, m.used, width, r.normalise, r.scale, sigmoid, selection, r.groups, r.groups_used
        )
        gate, up, down = (matrices[f"{mlp}experts.{part}.weight"] for part in ("gate", "up", "down"))
        pre = self.norm(layer.pre_mlp_norm, name, hidden)
        inner = [base + e for base in (gate, up) for e in range(m.experts)]
        self.decoder.prepare(_RESIDUAL, hidden, pre, inner, _GATHER)
        names = [f"{mlp}experts.{part}.bias" for part in ("gate", "up", "down")]
        biases = [self.tensors.vectors[b] if m.expert.bias else _NONE for b in names]
        self.decoder.experts(
            count=m.experts,
            gate=gate,
            up=up,
            gate_bias=biases[0],
            up_bias=biases[1],
            output=_HIDDEN,
            width=ff,
            epilogue=_ACTIVATIONS[m.expert.activation],
            clamp=m.expert.clamp or 0.0,
            up_offset=m.expert.up_offset,
        )
        outer = [down + e for e in range(m.experts)]
        self.decoder.prepare(_HIDDEN, ff, (_NO_NORM, _NONE, _NONE, 0.0), outer, _SLOTS)
        self.decoder.experts(
            count=m.experts,
            gate=down,
            up=_NONE,
            gate_bias=biases[2],
            up_bias=_NONE,
            output=_EXPERT,
            width=hidden,
            epilogue=_STORE,
            clamp=0.0,
            up_offset=0.0,
        )
        if m.shared is not None:
            self._shared(m.shared, layer, name, f"{mlp}shared.")
        self.decoder.combine(hidden, m.shared is not None, m.shared_gate, width)
        post = self.norm(layer.post_mlp_norm, f"{prefix}post_mlp_norm", hidden)
        self.decoder.residual(_BRANCH, post, layer.residual_scale)

    def _shared(self, m: DenseMlp, layer: Layer, norm: str, prefix: str) -> None:
        """The expert of every row, into the branch buffer."""
        names = {"gate": 0, "up": 0} if m.gated else {"up": 0}
        inner = [(matrix, bias, 0, site) for matrix, bias, _, site in self._parts(prefix, names, m.bias)]
        self._prepare(layer.pre_mlp_norm, norm, inner)
        bounds = (m.clamp or 0.0, m.up_offset)
        self._product(inner, _HIDDEN, m.ff, _ACTIVATIONS[m.activation], 1.0, *bounds)
        self._linear(_HIDDEN, m.ff, self._parts(prefix, {"down": self.spec.hidden}, m.bias), _BRANCH, 1.0)

    def _prepare(self, norm: Norm | None, name: str, parts: list[_Part]) -> None:
        hidden = self.spec.hidden
        self.decoder.prepare(_RESIDUAL, hidden, self.norm(norm, name, hidden), [part[0] for part in parts])

    def _close(
        self, source: int, width: int, parts: list[_Part], layer: Layer, norm: Norm | None, name: str
    ) -> None:
        """The end of a branch: into the residual stream, through a norm if there is one."""
        if norm is None:
            self._linear(source, width, parts, _RESIDUAL, layer.residual_scale)
            return
        self._linear(source, width, parts, _BRANCH, 1.0)
        self.decoder.residual(_BRANCH, self.norm(norm, name, self.spec.hidden), layer.residual_scale)

    def _linear(self, source: int, width: int, parts: list[_Part], target: int, scale: float) -> None:
        self.decoder.prepare(source, width, (_NO_NORM, _NONE, _NONE, 0.0), [part[0] for part in parts])
        epilogue = _ADD if target == _RESIDUAL else _STORE
        self._product(parts, target, self.spec.hidden, epilogue, scale)

    def _product(
        self,
        parts: list[_Part],
        output: int,
        width: int,
        epilogue: int,
        scale: float,
        clamp: float = 0.0,
        up_offset: float = 0.0,
    ) -> None:
        """A linear op, behind the op of adapters where its matrices have sites."""
        rank = self.config.max_lora_rank
        if rank:
            self.decoder.adapt([part[3] for part in parts], rank)
        self.decoder.linear(parts, output, width, epilogue, scale, clamp, up_offset, rank)


def _kv_position(
    groups: tuple[KvGroup, ...], a: Attention, index: int, *, latent: bool = False
) -> tuple[int, int]:
    """The KV group of a layer and the layer's place in it."""
    for g, group in enumerate(groups):
        if index not in group.layers:
            continue
        held = (group.kind, group.heads, group.k_dim, group.v_dim, group.window)
        kind = "latent" if latent else "window" if a.window else "full"
        wanted = (kind, a.kv_heads, a.k_dim, a.v_dim, a.window or 0)
        if held != wanted:
            raise ModelError(f"layer {index}: its KV group holds {held}, the layer needs {wanted}")
        return g, group.layers.index(index)
    raise ModelError(f"layer {index} is in no KV group")
