"""The manifest: every tensor of a DecoderSpec, with its names, shape, role and shard axis.

One list feeds the loader, the planner, the quantizer and the sharder, so that none of them knows an
architecture. Reads no file; names are those of GGUF (its tensor table) and of Hugging Face checkpoints of
the llama family. What files merge, split or call otherwise is ``spec.sources``' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from spola.core.errors import ModelError
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    LatentAttention,
    Layer,
    LayerNorm,
    LearnedPositions,
    LongRopeTensors,
    MoeMlp,
    Norm,
    Rope,
)

__all__ = ["Role", "ShardAxis", "TensorInfo", "in_load_order", "manifest"]

Role = Literal[
    "embedding",
    "positions",
    "norm",
    "linear",
    "heads",
    "experts",
    "router",
    "bias",
    "expert_bias",
    "sinks",
    "rope",
    "head",
]
ShardAxis = Literal["rows", "columns"]

# Parts of a name: canonical, GGUF, Hugging Face (the first that a checkpoint has is taken).
_Names = tuple[str, str, tuple[str, ...]]

_Q: _Names = ("attention.q", "attn_q", ("self_attn.q_proj",))
_K: _Names = ("attention.k", "attn_k", ("self_attn.k_proj",))
_V: _Names = ("attention.v", "attn_v", ("self_attn.v_proj",))
_O: _Names = ("attention.o", "attn_output", ("self_attn.o_proj", "self_attn.out_proj", "self_attn.dense"))
_Q_A: _Names = ("attention.q_a", "attn_q_a", ("self_attn.q_a_proj",))
_Q_A_NORM: _Names = ("attention.q_a_norm", "attn_q_a_norm", ("self_attn.q_a_layernorm",))
_Q_B: _Names = ("attention.q_b", "attn_q_b", ("self_attn.q_b_proj",))
_KV_A: _Names = ("attention.kv_a", "attn_kv_a_mqa", ("self_attn.kv_a_proj_with_mqa",))
_KV_A_NORM: _Names = ("attention.kv_a_norm", "attn_kv_a_norm", ("self_attn.kv_a_layernorm",))
_Q_NORM: _Names = ("attention.q_norm", "attn_q_norm", ("self_attn.q_norm", "self_attn.q_layernorm"))
_K_NORM: _Names = ("attention.k_norm", "attn_k_norm", ("self_attn.k_norm", "self_attn.k_layernorm"))
_GATE: _Names = ("mlp.gate", "ffn_gate", ("mlp.gate_proj",))
_UP: _Names = ("mlp.up", "ffn_up", ("mlp.up_proj", "mlp.c_fc", "mlp.fc1"))
_DOWN: _Names = ("mlp.down", "ffn_down", ("mlp.down_proj", "mlp.c_proj", "mlp.fc2"))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of a manifest.

    ``name`` is canonical. ``gguf`` and ``hf`` are the usual names in files. ``shape`` is (rows, columns),
    (n,) or, of a stack of experts or heads, (experts, rows, columns), innermost last. ``shard`` is the axis
    that tensor parallelism splits, None for a replicated tensor. ``required`` False: the file may leave it
    out.
    """

    name: str
    gguf: str
    hf: tuple[str, ...]
    shape: tuple[int, ...]
    role: Role
    shard: ShardAxis | None = None
    required: bool = True


def in_load_order(spec: DecoderSpec) -> list[TensorInfo]:
    """The manifest as it is loaded: the embedding and the head, the largest, while little else is held."""
    return sorted(manifest(spec), key=lambda info: info.role not in ("embedding", "head"))


def manifest(spec: DecoderSpec) -> list[TensorInfo]:
    """All tensors of ``spec`` in execution order. A tied head adds none.

    Raises ModelError naming a part that has no tensor names yet.
    """
    out = [_model("embedding", "token_embd", "model.embed_tokens", spec.vocab, spec.hidden, "embedding")]
    match spec.positions:
        case LearnedPositions(count=count, offset=offset):
            shape = (count + offset, spec.hidden)
            hf = ("model.embed_positions.weight", "transformer.wpe.weight")
            out.append(TensorInfo("positions.weight", "position_embd.weight", hf, shape, "positions"))
    if spec.embedding_norm is not None:
        names: _Names = ("embedding_norm", "token_embd_norm", ("model.embed_layernorm",))
        out += _norm(names, "", "", "", spec.embedding_norm, spec.hidden)
    out += _rope_factors(spec)
    for index, layer in enumerate(spec.layers):
        out += _layer(layer, index, spec.hidden)
    if spec.final_norm is not None:
        out += _norm(("final_norm", "output_norm", ("model.norm",)), "", "", "", spec.final_norm, spec.hidden)
    if not spec.head.tied:
        out.append(_model("head", "output", "lm_head", spec.vocab, spec.hidden, "head"))
    if spec.head.bias:
        out.append(TensorInfo("head.bias", "output.bias", ("lm_head.bias",), (spec.vocab,), "bias", "rows"))
    return out


def _model(name: str, gguf: str, hf: str, rows: int, columns: int, role: Role) -> TensorInfo:
    return TensorInfo(f"{name}.weight", f"{gguf}.weight", (f"{hf}.weight",), (rows, columns), role, "rows")


def _norm(names: _Names, canon: str, gguf: str, hf: str, norm: Norm, n: int) -> Iterator[TensorInfo]:
    """Weight, and the bias of a LayerNorm; the strings are the prefixes of one layer, or empty."""

    def info(kind: str) -> TensorInfo:
        files = tuple(f"{hf}{h}.{kind}" for h in names[2])
        return TensorInfo(f"{canon}{names[0]}.{kind}", f"{gguf}{names[1]}.{kind}", files, (n,), "norm")

    if not isinstance(norm, LayerNorm) or norm.weight:
        yield info("weight")
    if isinstance(norm, LayerNorm) and norm.bias:
        yield info("bias")


def _rope_factors(spec: DecoderSpec) -> Iterator[TensorInfo]:
    seen: dict[str, int] = {}
    for index, layer in enumerate(spec.layers):
        positions = layer.attention.positions
        if not isinstance(positions, Rope):
            continue
        half, scaling = positions.dim // 2, positions.scaling
        names = [positions.factors] if positions.factors is not None else []
        names += [scaling.short, scaling.long] if isinstance(scaling, LongRopeTensors) else []
        for name in names:
            if seen.setdefault(name, half) != half:
                raise ModelError(f"layer {index}: {name} is shared by rope dimensions that differ")
    for name, half in seen.items():
        yield TensorInfo(name, name, (), (half,), "rope")


def _layer(layer: Layer, index: int, hidden: int) -> Iterator[TensorInfo]:
    canon, gguf, hf = f"layers.{index}.", f"blk.{index}.", f"model.layers.{index}."
    # Hugging Face calls the norm before the MLP "post attention" unless there is a real one after attention.
    sandwich = layer.post_attention_norm is not None
    pre_mlp_hf = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
    norms: dict[str, tuple[_Names, Norm | None]] = {
        "pre_attention": (
            ("pre_attention_norm", "attn_norm", ("input_layernorm",)),
            layer.pre_attention_norm,
        ),
        "post_attention": (
            ("post_attention_norm", "post_attention_norm", ("post_attention_layernorm",)),
            layer.post_attention_norm,
        ),
        "pre_mlp": (("pre_mlp_norm", "ffn_norm", (pre_mlp_hf,)), layer.pre_mlp_norm),
        "post_mlp": (
            ("post_mlp_norm", "post_ffw_norm", ("post_feedforward_layernorm",)),
            layer.post_mlp_norm,
        ),
    }

    def norm(which: str) -> Iterator[TensorInfo]:
        names, part = norms[which]
        if part is not None:
            yield from _norm(names, canon, gguf, hf, part, hidden)

    yield from norm("pre_attention")
    match layer.attention:
        case Attention() as attention:
            yield from _attention(attention, canon, gguf, hf, hidden)
        case LatentAttention() as latent:
            yield from _latent(latent, canon, gguf, hf, hidden)
    yield from norm("post_attention")
    yield from norm("pre_mlp")
    match layer.mlp:
        case DenseMlp() as mlp:
            yield from _mlp(mlp, (canon, gguf, hf), hidden)
        case MoeMlp() as moe:
            yield from _moe(moe, index, (canon, gguf, hf), hidden)
    yield from norm("post_mlp")


def _linear(
    names: _Names, prefix: tuple[str, str, str], shape: tuple[int, int], shard: ShardAxis, bias: bool
) -> Iterator[TensorInfo]:
    def info(kind: str, dims: tuple[int, ...], role: Role, axis: ShardAxis | None) -> TensorInfo:
        files = tuple(f"{prefix[2]}{h}.{kind}" for h in names[2])
        return TensorInfo(
            f"{prefix[0]}{names[0]}.{kind}", f"{prefix[1]}{names[1]}.{kind}", files, dims, role, axis
        )

    yield info("weight", shape, "linear", shard)
    if bias:
        yield info("bias", shape[:1], "bias", "rows" if shard == "rows" else None)


def _attention(a: Attention, canon: str, gguf: str, hf: str, hidden: int) -> Iterator[TensorInfo]:
    prefix = (canon, gguf, hf)
    yield from _linear(_Q, prefix, (a.heads * a.k_dim, hidden), "rows", a.qkv_bias)
    yield from _linear(_K, prefix, (a.kv_heads * a.k_dim, hidden), "rows", a.qkv_bias)
    yield from _linear(_V, prefix, (a.kv_heads * a.v_dim, hidden), "rows", a.qkv_bias)
    whole = a.qk_norm_span == "whole"
    if a.q_norm is not None:
        yield from _norm(_Q_NORM, canon, gguf, hf, a.q_norm, a.k_dim * (a.heads if whole else 1))
    if a.k_norm is not None:
        yield from _norm(_K_NORM, canon, gguf, hf, a.k_norm, a.k_dim * (a.kv_heads if whole else 1))
    if a.sinks:
        files = (f"{hf}self_attn.sinks",)
        yield TensorInfo(
            f"{canon}attention.sinks", f"{gguf}attn_sinks.weight", files, (a.heads,), "sinks", "rows"
        )
    yield from _linear(_O, prefix, (hidden, a.heads * a.v_dim), "columns", a.out_bias)


def _latent(a: LatentAttention, canon: str, gguf: str, hf: str, hidden: int) -> Iterator[TensorInfo]:
    """Projections into the latents, and per head ``k_b`` (from q to the latent) and ``v_b`` (back from it).

    ``k_b`` of a head is K_h transposed. Folders hold both in one matrix, which ``spec.sources`` takes apart.
    """
    prefix = (canon, gguf, hf)
    if a.q_rank is None:
        yield from _linear(_Q, prefix, (a.heads * a.q_dim, hidden), "rows", False)
    else:
        yield from _linear(_Q_A, prefix, (a.q_rank, hidden), "rows", False)
        yield from _norm(_Q_A_NORM, canon, gguf, hf, a.norm, a.q_rank)
        yield from _linear(_Q_B, prefix, (a.heads * a.q_dim, a.q_rank), "rows", False)
    yield from _linear(_KV_A, prefix, (a.kv_rank + a.rope_dim, hidden), "rows", False)
    yield from _norm(_KV_A_NORM, canon, gguf, hf, a.norm, a.kv_rank)
    for name, shape in (("k_b", (a.heads, a.kv_rank, a.nope_dim)), ("v_b", (a.heads, a.v_dim, a.kv_rank))):
        yield TensorInfo(f"{canon}attention.{name}.weight", f"{gguf}attn_{name}.weight", (), shape, "heads")
    yield from _linear(_O, prefix, (hidden, a.heads * a.v_dim), "columns", False)


def _mlp(m: DenseMlp, prefix: tuple[str, str, str], hidden: int) -> Iterator[TensorInfo]:
    if m.gated:
        yield from _linear(_GATE, prefix, (m.ff, hidden), "rows", m.bias)
    yield from _linear(_UP, prefix, (m.ff, hidden), "rows", m.bias)
    yield from _linear(_DOWN, prefix, (hidden, m.ff), "columns", m.bias)


def _moe(m: MoeMlp, index: int, prefix: tuple[str, str, str], hidden: int) -> Iterator[TensorInfo]:
    """Router, the stacks of experts, and the shared expert with its gate."""
    canon, gguf, hf = prefix
    e = m.expert
    if not e.gated:
        raise ModelError(f"layer {index}: experts without gates are not supported yet")

    def info(
        name: str, file: str, hf_name: str, shape: tuple[int, ...], role: Role, kind: str = "weight"
    ) -> TensorInfo:
        files = (f"{hf}mlp.{hf_name}.{kind}",)
        return TensorInfo(f"{canon}mlp.{name}.{kind}", f"{gguf}{file}.{kind}", files, shape, role)

    yield info("router", "ffn_gate_inp", "gate", (m.experts, hidden), "router")
    if m.router.bias:
        yield info("router", "ffn_gate_inp", "gate", (m.experts,), "bias", "bias")
    if m.router.selection_bias:
        names = (
            f"{canon}mlp.selection.bias",
            f"{gguf}exp_probs_b.bias",
            (f"{hf}mlp.gate.e_score_correction_bias",),
        )
        yield TensorInfo(*names, (m.experts,), "bias")
    up, down = (m.experts, e.ff, hidden), (m.experts, hidden, e.ff)
    for name, file, shape in (("gate", "ffn_gate", up), ("up", "ffn_up", up), ("down", "ffn_down", down)):
        hf_name = f"experts.{{e}}.{name}_proj"
        yield info(f"experts.{name}", f"{file}_exps", hf_name, shape, "experts")
        if e.bias:
            yield info(f"experts.{name}", f"{file}_exps", hf_name, shape[:2], "expert_bias", "bias")
    if m.shared is None:
        return
    ff = m.shared.ff
    for name, file, dims in (
        ("gate", "ffn_gate", (ff, hidden)),
        ("up", "ffn_up", (ff, hidden)),
        ("down", "ffn_down", (hidden, ff)),
    ):
        yield info(f"shared.{name}", f"{file}_shexp", f"shared_expert.{name}_proj", dims, "linear")
    if m.shared_gate:
        yield info("shared_gate", "ffn_gate_inp_shexp", "shared_expert_gate", (1, hidden), "router")
