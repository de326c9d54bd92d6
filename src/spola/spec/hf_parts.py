"""The parts of a DecoderSpec as a ``config.json`` states them: windows, positions, MLPs, scales.

Each function reads a few keys with the defaults of its row and checks them. What no row reads and would
change the computation is refused here by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spola.core.errors import ModelError
from spola.spec.decoder import Activation, DenseMlp, MoeMlp, NoPositions, Positions, Router
from spola.spec.families import Placement
from spola.spec.hf_config import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, HfConfig, show
from spola.spec.hf_deepseek import latent_mlps
from spola.spec.hf_rope import read_rope, rope_parameters
from spola.spec.hf_rows import HfRow

__all__ = [
    "HARMLESS",
    "Scales",
    "kv_heads",
    "mlps",
    "placement",
    "positions",
    "refuse_other",
    "said",
    "scales",
    "windows",
]

# Keys that would change the computation, with the values at which they do not. Where a row obeys one, it has
# been asked for; a file that sets another to anything else is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "decoder_sparse_step": (1,),
    "embedding_multiplier": (1.0,),
    "final_logit_softcapping": (),
    "hidden_act": ("gelu_pytorch_tanh",),  # beside hidden_activation, which counts
    "hidden_activation": ("gelu_pytorch_tanh",),
    "is_encoder_decoder": (False,),
    "layer_types": (),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "mlp_bias": (False,),
    "mlp_only_layers": ([],),
    "moe_intermediate_size": (),
    "no_rope_layers": (),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1.0,),
    "qk_layernorm": (False,),
    "qkv_bias": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1.0,),
    "rope_parameters": ({},),
    "rope_scaling": ({},),
    "rotary_pct": (1.0,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "sliding_window": (0,),
    "sparse_config": ({},),
    "use_bidirectional_attention": (False,),
    "use_bias": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_qkv_bias": (False,),
    "use_sliding_window": (False,),
}

# Keys that say nothing about the computation of logits: training, generation, bookkeeping.
HARMLESS = frozenset(
    (
        "_name_or_path",
        "_attn_implementation",
        "_sliding_window_pattern",
        "architectures",
        "attention_dropout",
        "aux_loss_alpha",
        "attn_implementation",
        "attn_pdrop",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "classifier_dropout",
        "dtype",
        "embd_pdrop",
        "embedding_dropout",
        "eos_token_id",
        "ep_size",
        "hidden_dropout",
        "initializer_range",
        "max_window_layers",
        "model_max_length",
        "model_type",
        "mup_denominator",
        "n_ctx",
        "num_nextn_predict_layers",  # layers behind the last one, for more tokens than the next
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "residual_dropout",
        "rope_interleaved",
        "rope_theta",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sep_token_id",
        "seq_aux",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
        *_NEUTRAL,
    )
)

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


def refuse_other(config: HfConfig) -> None:
    """Refuse what would change the computation and no one has asked for."""
    for key, neutral in _NEUTRAL.items():
        value = config.values.get(key)
        if key not in config.read and value is not None and value not in neutral:
            kind = config.values.get("model_type")
            raise ModelError(f"config.json: {key} is {show(value)}, which is not supported for {kind}")


def said(config: HfConfig, what: bool | str) -> bool:
    return what if isinstance(what, bool) else config.flag(what)


def kv_heads(config: HfConfig, row: HfRow, heads: int) -> int:
    count = config.optional_integer("num_key_value_heads", 1, MAX_HEADS) or heads
    if row.placing == "falcon" and not config.flag("new_decoder_architecture"):
        count = 1 if config.flag("multi_query", True) else heads
    if heads % count:
        raise ModelError(
            f"config.json: {heads} attention heads are no multiple of {count} key and value heads"
        )
    return count


def windows(config: HfConfig, row: HfRow, n: int) -> tuple[int | None, ...]:
    """The window of each layer, None where it sees everything."""
    if row.window == "none":
        return (None,) * n
    window = config.optional_integer("sliding_window", 0, MAX_CONTEXT) or None
    if row.window in ("late", "used", "nope") and not config.flag("use_sliding_window"):
        config.get("layer_types")  # all are full attention then
        return _of_types(config, n, None)
    types = None if row.window in ("all", "used") else config.listed("layer_types", n)
    if types is not None:
        return _of_types(config, n, window)
    every = _window_period(config, row)
    late = config.integer("max_window_layers", 0, 4096) if row.window == "late" else 0
    bare = _no_rope(config, n) if row.window == "nope" else [True] * n

    def has(i: int) -> bool:
        return i >= late and bare[i] and (every <= 1 or (i + 1) % every != 0)

    return tuple(window if has(i) else None for i in range(n))


def _window_period(config: HfConfig, row: HfRow) -> int:
    match row.window:
        case "even":
            return 2
        case "1/4" | "1/6":
            return config.optional_integer("sliding_window_pattern", 1, 4096) or int(row.window[-1])
    return 0


def _of_types(config: HfConfig, n: int, window: int | None) -> tuple[int | None, ...]:
    types = config.listed("layer_types", n) or ["full_attention"] * n
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"config.json: layer_types has {show(kind)}, which is not supported")
    if "sliding_attention" in types and window is None:
        raise ModelError("config.json: layer_types has sliding_attention, but sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _no_rope(config: HfConfig, n: int) -> list[bool]:
    """Of each layer, whether it has no rope (SmolLM3)."""
    flags = config.listed("no_rope_layers", n)
    if flags is None:
        every = config.optional_integer("no_rope_layer_interval", 1, 4096) or 4
        return [(i + 1) % every == 0 for i in range(n)]
    if any(flag not in (0, 1) for flag in flags):
        raise ModelError("config.json: no_rope_layers must hold 0 (no rope) or 1 for each layer")
    config.get("no_rope_layer_interval")
    return [not flag for flag in flags]


def positions(
    config: HfConfig, row: HfRow, windows: tuple[int | None, ...], head_dim: int, context: int
) -> tuple[Positions, ...]:
    """What each layer knows of positions."""
    n = len(windows)
    if row.rope == "none":
        return (NoPositions(),) * n
    theta = config.number(row.theta_key, 1.0, 1e15, default=row.theta)
    partial = config.number(row.partial_key, 0.0, 1.0, default=row.partial)

    def rope(values: dict[str, Any], theta: float) -> Positions:
        return read_rope(
            config,
            values,
            head_dim=head_dim,
            theta=theta,
            partial=partial,
            context=context,
            longrope_only=row.longrope_only,
            layout=row.layout,
        )

    full = rope(rope_parameters(config, "full_attention"), theta)
    if row.rope == "nope_layers":
        return tuple(NoPositions() if bare else full for bare in _no_rope(config, n))
    if row.rope == "one":
        return (full,) * n
    if row.rope == "in_windows":
        return tuple(NoPositions() if window is None else full for window in windows)
    # A file with one scaling for all means the layers that see everything.
    nested = config.mapping("rope_parameters") or {}
    own = rope_parameters(config, "sliding_attention") if "sliding_attention" in nested else {}
    if row.rope == "per_kind":
        theta = config.number("rope_local_base_freq", 1.0, 1e15, default=10000.0)
    local = rope(own, theta)
    return tuple(full if window is None else local for window in windows)


def mlps(config: HfConfig, row: HfRow, n: int, hidden: int) -> tuple[DenseMlp | MoeMlp, ...]:
    """The MLP of each layer."""
    activation = _activation(config, row)
    ff = config.optional_integer("intermediate_size", 1, MAX_WIDTH)
    if ff is None and not row.family.gated:
        ff = 4 * hidden
    ff = ff or config.integer("intermediate_size", 1, MAX_WIDTH)
    dense = DenseMlp(ff, activation, gated=row.family.gated, bias=said(config, row.mlp_bias))
    if row.moe == "none":
        return (dense,) * n
    if row.moe == "deepseek":
        return latent_mlps(config, dense, n, activation)
    sparse = _experts(config, row, ff, activation)
    if row.moe in ("mixtral", "olmoe"):
        return (sparse,) * n
    step = config.optional_integer("decoder_sparse_step", 1, 4096) or 1
    only = config.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(isinstance(i, int) for i in only):
        raise ModelError("config.json: mlp_only_layers must be a list of layer numbers")
    return tuple(dense if i in only or (i + 1) % step else sparse for i in range(n))


def _activation(config: HfConfig, row: HfRow) -> Activation:
    name = config.get(row.activation)
    if name is None:
        return row.family.activation
    if row.legacy_gelu and name == "gelu":
        name = "gelu_pytorch_tanh"  # old Gemma configurations say gelu and mean the approximation
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(
            f"config.json: {row.activation} {show(name)} is not supported; supported are: {known}"
        )
    return _ACTIVATIONS[name]


def _experts(config: HfConfig, row: HfRow, ff: int, activation: Activation) -> MoeMlp:
    count_key = "num_local_experts" if row.moe == "mixtral" else "num_experts"
    if row.moe != "mixtral" and not config.given(count_key) and config.given("num_local_experts"):
        count_key = "num_local_experts"
    count = config.integer(count_key, 1, 1 << 16)
    used = config.integer("num_experts_per_tok", 1, count)
    if row.moe in ("qwen2", "qwen3"):
        ff = config.integer("moe_intermediate_size", 1, MAX_WIDTH)
    normalise = row.moe == "mixtral" or config.flag("norm_topk_prob")
    shared = None
    if row.moe == "qwen2":
        shared = DenseMlp(config.integer("shared_expert_intermediate_size", 1, MAX_WIDTH), activation)
    expert = DenseMlp(ff, activation)
    return MoeMlp(count, used, expert, Router("softmax", normalise), shared, shared is not None)


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors and caps. ``by_layer``: the attention factor is divided by the layer's number from 1."""

    attention: float
    embedding: float
    residual: float
    logits: float
    attention_softcap: float | None
    logit_softcap: float | None
    by_layer: bool


def scales(config: HfConfig, row: HfRow, head_dim: int, hidden: int) -> Scales:
    def read(key: str, default: float | None) -> float | None:
        if key not in row.optional:
            return default
        value = config.optional_number(key, 0.0, 1e9)
        return default if value is None else value

    def factor(key: str) -> float:
        value = read(key, 1.0)
        assert value is not None
        return value

    attention = float(head_dim**-0.5)
    if row.scale is not None:
        attention = config.number(row.scale, 1e-9, 1e9)
        attention = attention if row.scale_as_is else float(attention**-0.5)
    by_layer = False
    if row.rope == "none":  # GPT-2's own switches
        attention = attention if config.flag("scale_attn_weights", True) else 1.0
        by_layer = config.flag("scale_attn_by_inverse_layer_idx")
    divisor = factor("logits_scaling")
    if divisor == 0.0:
        raise ModelError("config.json: logits_scaling must not be 0")
    embedding, residual = factor("embedding_multiplier") * factor("scale_emb"), factor("residual_multiplier")
    logits = factor("logit_scale") / divisor
    if (
        "scale_depth" in row.optional
    ):  # MiniCPM (arXiv 2404.06395): widths and depths that hyperparameters keep
        residual *= factor("scale_depth") / config.integer("num_hidden_layers", 1, MAX_LAYERS) ** 0.5
        logits *= config.number("dim_model_base", 1.0, 1e9, default=1.0) / hidden
    return Scales(
        attention=attention,
        embedding=embedding * (hidden**0.5 if row.scaled_embedding else 1.0),
        residual=residual,
        logits=logits,
        attention_softcap=read("attn_logit_softcapping", None) or None,
        logit_softcap=read("final_logit_softcapping", None) or None,
        by_layer=by_layer,
    )


def placement(config: HfConfig, row: HfRow) -> Placement | None:
    """Where the norms are when the file says so; None leaves it to the family."""
    match row.placing:
        case "neox":
            return "parallel_two" if config.flag("use_parallel_residual", True) else "pre"
        case "stablelm":
            return "parallel" if config.flag("use_parallel_residual") else "pre"
        case "falcon":
            if config.flag("new_decoder_architecture"):
                config.get("parallel_attn")  # this architecture is always parallel
                norms = config.optional_integer("num_ln_in_parallel_attn", 1, 2)
                return "parallel" if norms == 1 else "parallel_two"
            return "parallel" if config.flag("parallel_attn", True) else "pre"
        case "family":
            return None
