"""The parts of a DecoderSpec as a GGUF file states them: sizes, positions, windows, MLPs, scales.

Each function reads a few keys with the defaults of its row and checks them. Nothing here knows an
architecture by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spola.core.errors import ModelError
from spola.spec.decoder import DenseMlp, MoeMlp, NoPositions, NoScaling, Positions, Rope, Router, YarnScaling
from spola.spec.families import Placement
from spola.spec.gguf_keys import MAX_CONTEXT, MAX_WIDTH, Keys
from spola.spec.gguf_latent import latent_router
from spola.spec.gguf_rope import ROPE_FREQS, ROPE_LONG, read_scaling
from spola.spec.gguf_rows import GgufRow
from spola.spec.sources import TensorTable

__all__ = [
    "NEUTRAL",
    "Scales",
    "embedding",
    "epsilon",
    "head_dims",
    "mlps",
    "placement",
    "positions",
    "present",
    "refuse_non_neutral",
    "scales",
    "windows",
]

# Keys that would change the output. Where the row of an architecture obeys one, it has been asked for; a file
# that sets another to anything but its neutral value is refused.
NEUTRAL: dict[str, Any] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_count": 0,
    "expert_weights_scale": 0.0,
    "expert_gating_func": 1,
    "expert_group_count": 0,
    "nextn_predict_layers": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "use_parallel_residual": False,
    "rope.scaling.alpha": 0.0,
}


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors and caps; ``attention`` None leaves it to the row."""

    attention: float | None
    embedding: float
    residual: float
    logits: float
    attention_softcap: float | None
    logit_softcap: float | None


def scales(keys: Keys, row: GgufRow, hidden: int) -> Scales:
    def read(key: str, neutral: float | None) -> float | None:
        if key not in row.optional:
            return neutral
        value = keys.optional_number(key, 0.0, 1e9)
        if value is None and key in row.stated:
            raise ModelError(
                f"key {keys.arch}.{key} is missing; convert the model again with a newer converter"
            )
        return (value if value is not None else row.optional[key]) or neutral

    embedding = read("embedding_scale", 1.0) or 1.0
    logits = read("logit_scale", 1.0) or 1.0
    return Scales(
        attention=read("attention.scale", None),
        embedding=embedding * (hidden**0.5 if row.scaled_embedding else 1.0),
        residual=read("residual_scale", 1.0) or 1.0,
        logits=logits if row.logits_multiplied else 1.0 / logits,
        attention_softcap=read("attn_logit_softcapping", None),
        logit_softcap=read("final_logit_softcapping", None),
    )


def refuse_non_neutral(keys: Keys) -> None:
    for key, neutral in NEUTRAL.items():
        if keys.was_read(key):
            continue
        value = keys.get(key)
        if value is not None and value != neutral:
            raise ModelError(f"key {keys.arch}.{key} is {value!r}; only {neutral!r} is supported")


def embedding(keys: Keys, tensors: TensorTable, hidden: int) -> int:
    """Rows of the embedding, which are the vocabulary; a shorter tokenizer leaves padding rows."""
    name = "token_embd.weight"
    if name not in tensors:
        raise ModelError(f"tensor {name} is missing; the file is incomplete or holds a vocabulary only")
    shape = tuple(tensors[name][1])
    if len(shape) != 2 or shape[1] != hidden or shape[0] < 1:
        raise ModelError(f"tensor {name} has shape {list(shape)}, expected [vocabulary, {hidden}]")
    declared = keys.optional_integer("vocab_size", 1, MAX_WIDTH)
    if declared is not None and declared > shape[0]:
        raise ModelError(f"key {keys.arch}.vocab_size is {declared}, but {name} has {shape[0]} rows")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > shape[0]:
        raise ModelError(
            f"key tokenizer.ggml.tokens has {len(tokens)} entries, but {name} has only {shape[0]} rows"
        )
    return shape[0]


def present(tensors: TensorTable, names: list[str], what: str) -> bool:
    """Whether all of ``names`` are there; ModelError when only some are."""
    there = [name for name in names if name in tensors]
    if there and len(there) != len(names):
        missing = next(name for name in names if name not in tensors)
        raise ModelError(f"tensor {missing} is missing, while other {what} are present ({there[0]})")
    return bool(there)


def head_dims(keys: Keys, hidden: int, heads: tuple[int, ...]) -> tuple[int, int]:
    """k and v dimensions of a head: the keys, else hidden / heads of the first layer."""
    k_dim = keys.optional_integer("attention.key_length", 1, MAX_WIDTH)
    v_dim = keys.optional_integer("attention.value_length", 1, MAX_WIDTH)
    if (k_dim is None or v_dim is None) and hidden % heads[0]:
        raise ModelError(
            f"key {keys.arch}.attention.head_count is {heads[0]}, which does not divide embedding_length"
            f" {hidden}; {keys.arch}.attention.key_length and value_length are needed then"
        )
    return k_dim or hidden // heads[0], v_dim or hidden // heads[0]


def epsilon(keys: Keys, norm: str) -> float:
    key = "attention.layer_norm_rms_epsilon" if norm == "rms" else "attention.layer_norm_epsilon"
    return keys.number(key, 0.0, 1.0)


def windows(keys: Keys, row: GgufRow, n: int) -> tuple[int | None, ...]:
    """The window of each layer, None where it sees everything."""
    window = keys.optional_integer("attention.sliding_window", 0, MAX_CONTEXT)
    window = row.window_default if window is None else window
    if not window:
        return (None,) * n
    every = row.window_every
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != n or not all(isinstance(flag, bool) for flag in pattern):
            raise ModelError(
                f"key {keys.arch}.attention.sliding_window_pattern must hold {n} truth values, one a layer"
            )
        return tuple(window if flag else None for flag in pattern)
    if pattern is not None:
        every = keys.integer("attention.sliding_window_pattern", 1, 4096)
    return tuple(None if every > 1 and i % every == every - 1 else window for i in range(n))


def positions(
    keys: Keys, tensors: TensorTable, row: GgufRow, n: int, k_dim: int, context: int
) -> tuple[Positions, ...]:
    """What each layer knows of positions."""
    if not row.rope:
        return (NoPositions(),) * n
    rope = _rope(keys, tensors, row, k_dim, context)
    local = rope
    if row.window_rope_base is not None:
        base = keys.number("rope.freq_base_swa", 1.0, 1e15, default=row.window_rope_base)
        local = Rope(rope.dim, base, rope.layout)
    elif row.window_unscaled:
        local = Rope(rope.dim, rope.base, rope.layout, NoScaling())
    out: list[Positions] = []
    for i, window in enumerate(windows(keys, row, n)):
        bare = row.no_rope_every and (i + 1) % row.no_rope_every == 0
        bare = bare or (row.rope_in_windows and window is None)
        out.append(NoPositions() if bare else rope if window is None else local)
    return tuple(out)


def _rope(keys: Keys, tensors: TensorTable, row: GgufRow, k_dim: int, context: int) -> Rope:
    dim = keys.optional_integer("rope.dimension_count", 2, k_dim) or k_dim
    if dim % 2:
        raise ModelError(f"key {keys.arch}.rope.dimension_count must be even, not {dim}")
    base = keys.number("rope.freq_base", 1.0, 1e15, default=10000.0)
    factors, long = ROPE_FREQS in tensors, ROPE_LONG in tensors
    scaling = read_scaling(keys, context, base, has_factors=factors, has_long=long)
    if isinstance(scaling, YarnScaling):
        scaling = replace(scaling, truncate=row.yarn_truncate)
    return Rope(dim, base, row.layout, scaling, ROPE_FREQS if factors else None)


def mlps(keys: Keys, tensors: TensorTable, row: GgufRow, n: int) -> tuple[DenseMlp | MoeMlp, ...]:
    """The MLP of each layer: dense, or of experts where the file has a router."""
    experts = keys.optional_integer("expert_count", 0, 1 << 16) or 0
    routed = [f"blk.{i}.ffn_gate_inp.weight" in tensors for i in range(n)] if experts else [False] * n
    keys.optional_integer("leading_dense_block_count", 0, n)  # which layers have experts, their tensors say
    if experts and not any(routed):
        raise ModelError(
            "tensor blk.0.ffn_gate_inp.weight is missing; the file is incomplete or of another kind"
        )
    ff: tuple[int, ...] = ()
    if not all(routed) or keys.get("expert_feed_forward_length") is None:
        ff = keys.per_layer("feed_forward_length", n, 1, MAX_WIDTH)
    else:
        keys.get("feed_forward_length")  # converters write it; no layer has a dense MLP
    expert_ff = keys.optional_integer("expert_feed_forward_length", 1, MAX_WIDTH)
    return tuple(
        _experts(keys, tensors, row, experts, expert_ff or ff[i], i)
        if routed[i]
        else _dense(tensors, row, ff[i], i)
        for i in range(n)
    )


def _dense(tensors: TensorTable, row: GgufRow, ff: int, i: int) -> DenseMlp:
    family = row.family
    names = ("gate", "up", "down") if family.gated and not row.merged_mlp else ("up", "down")
    bias = present(tensors, [f"blk.{i}.ffn_{x}.bias" for x in names], "MLP biases")
    return DenseMlp(ff, family.activation, gated=family.gated, bias=bias)


def _experts(keys: Keys, tensors: TensorTable, row: GgufRow, experts: int, ff: int, i: int) -> MoeMlp:
    used = keys.integer("expert_used_count", 1, experts)
    biases = [f"blk.{i}.ffn_{x}_exps.bias" for x in ("gate", "up", "down")]
    expert = DenseMlp(
        ff,
        row.family.activation,
        bias=present(tensors, biases, "biases of experts"),
        clamp=row.clamp,
        up_offset=row.up_offset,
    )
    shared, gate = f"blk.{i}.ffn_up_shexp.weight", f"blk.{i}.ffn_gate_inp_shexp.weight"
    shared_mlp = None
    if shared in tensors:
        shared_ff = keys.optional_integer("expert_shared_feed_forward_length", 1, MAX_WIDTH)
        if row.latent:
            shared_ff = ff * keys.integer("expert_shared_count", 1, experts)
        shared_mlp = DenseMlp(shared_ff or ff, row.family.activation)
    bias = f"blk.{i}.ffn_gate_inp.bias" in tensors
    router = Router("softmax", row.normalised_experts, bias=bias)
    if row.latent:
        router = latent_router(keys, tensors, experts, i)
    return MoeMlp(experts, used, expert, router, shared_mlp, shared_mlp is not None and gate in tensors)


def placement(keys: Keys, tensors: TensorTable, row: GgufRow, i: int) -> Placement | None:
    """Where the norms of layer ``i`` are when its file says so; None leaves it to the family."""
    if row.placing == "family":
        return None
    parallel = keys.get("use_parallel_residual")
    if not isinstance(parallel, bool | None):
        raise ModelError(f"key {keys.arch}.use_parallel_residual must be true or false")
    match row.placing:
        case "neox":
            return "pre" if parallel is False else "parallel_two"
        case "falcon":
            return "parallel_two" if f"blk.{i}.attn_norm_2.weight" in tensors else "parallel"
        case "stablelm":
            return "pre" if f"blk.{i}.ffn_norm.weight" in tensors else "parallel"
