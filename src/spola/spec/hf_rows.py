"""The model types of Hugging Face folders, one row each: the family, its names, its configuration's defaults.

Defaults are those that the ``transformers`` library's configuration classes have, since files leave out what
equals them. Reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spola.spec import families, hf_names
from spola.spec.families import Family
from spola.spec.hf_names import HfNames

__all__ = ["ROWS", "HfRow"]

# A constant, or the key that says so.
_Said = bool | str


@dataclass(frozen=True, slots=True)
class HfRow:
    """``window``: which layers have one. ``even``: every other from the first; ``1/6``, ``1/4``: all but
    every sixth or fourth; ``late``: from ``max_window_layers`` on; ``used``: all, if ``use_sliding_window``;
    ``nope``: those without rope. ``layer_types`` in a file overrides it, but for ``all``. ``rope``
    ``per_kind``: one for layers with a window and one for the others; ``in_windows``: only
    layers with a window have one. ``scale``: the key whose power -1/2
    (with ``scale_as_is``: whose value) multiplies scores. ``moe``: which keys describe experts.
    """

    family: Family
    names: HfNames = hf_names.LLAMA
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    eps: str = "rms_norm_eps"
    norm_offset: float = 0.0
    qkv_bias: _Said = False
    out_bias: _Said = False
    mlp_bias: _Said = False
    head_bias: bool = False
    activation: str = "hidden_act"
    window: Literal["none", "all", "used", "late", "even", "1/6", "1/4", "nope"] = "none"
    rope: Literal["one", "per_kind", "unscaled_window", "in_windows", "nope_layers", "none"] = "one"
    layout: Literal["interleaved", "half"] = "half"
    partial: float = 1.0
    partial_key: str = "partial_rotary_factor"
    theta: float = 10000.0
    theta_key: str = "rope_theta"
    longrope_only: bool = False
    scale: str | None = None
    scale_as_is: bool = False
    scaled_embedding: bool = False
    optional: tuple[str, ...] = ()  # keys obeyed by this type only
    placing: Literal["family", "neox", "falcon", "stablelm"] = "family"
    moe: Literal["none", "mixtral", "qwen2", "qwen3", "olmoe", "deepseek"] = "none"
    latent: bool = False  # DeepSeek-V2's attention
    tied: bool = False  # what a missing tie_word_embeddings means
    legacy_gelu: bool = False  # "gelu" stands for the tanh approximation
    refused: Callable[[Mapping[str, Any]], str | None] = lambda values: (
        None
    )  # why, of some models of the type


def _baichuan(values: Mapping[str, Any]) -> str | None:
    """Baichuan's models share a model type; nothing but their sizes tells them apart."""
    if values.get("max_position_embeddings") is None:  # the 13B models name model_max_length only
        return "it has ALiBi instead of rope (Baichuan 13B), which no backend computes yet"
    if values.get("vocab_size", 64000) > 64000:
        return "it normalises the rows of its head (Baichuan 2), which is not done yet"
    return None


_GEMMA_DEFAULTS = {"head_dim": 256, "rms_norm_eps": 1e-6, "max_position_embeddings": 8192}
_GEMMA: dict[str, Any] = {
    "norm_offset": 1.0,
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "scaled_embedding": True,
    "tied": True,
}
_GEMMA3_TEXT: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}
_RMS6: dict[str, Any] = {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
_DEEPSEEK: dict[str, Any] = _RMS6 | {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_COHERE_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
}
_COHERE: dict[str, Any] = {
    "eps": "layer_norm_eps",
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "layout": "interleaved",
    "theta": 500000.0,
    "optional": ("logit_scale",),
    "tied": True,
}
_GLM_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1.5625e-7,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": True,
}
_GLM: dict[str, Any] = {"qkv_bias": "attention_bias", "layout": "interleaved", "partial": 0.5}
_GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
}
_QWEN_DEFAULTS = _RMS6 | {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}

ROWS: dict[str, HfRow] = {
    "llama": HfRow(
        families.LLAMA,
        defaults=_RMS6 | {"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "mistral": HfRow(
        families.LLAMA,
        defaults=_RMS6
        | {"max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8},
        window="all",
    ),
    "mixtral": HfRow(
        families.LLAMA,
        hf_names.MIXTRAL,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
        | {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
        window="all",
        theta=1e6,
        moe="mixtral",
    ),
    "qwen2": HfRow(families.LLAMA, defaults=_QWEN_DEFAULTS, qkv_bias=True, window="late"),
    "qwen2_moe": HfRow(
        families.LLAMA,
        defaults=_QWEN_DEFAULTS
        | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
        | {"shared_expert_intermediate_size": 5632, "qkv_bias": True},
        qkv_bias="qkv_bias",
        moe="qwen2",
    ),
    "qwen3": HfRow(
        families.QWEN3,
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        window="late",
    ),
    "qwen3_moe": HfRow(
        families.QWEN3,
        defaults=_QWEN_DEFAULTS
        | {"num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
        | {"moe_intermediate_size": 768},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        window="used",
        moe="qwen3",
    ),
    "gemma": HfRow(families.GEMMA, defaults=_GEMMA_DEFAULTS, legacy_gelu=True, **_GEMMA),
    "gemma2": HfRow(
        families.GEMMA2,
        defaults=_GEMMA_DEFAULTS
        | {"query_pre_attn_scalar": 256, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh"}
        | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        activation="hidden_activation",
        window="even",
        scale="query_pre_attn_scalar",
        optional=("final_logit_softcapping", "attn_logit_softcapping"),
        **_GEMMA,
    ),
    "gemma3_text": HfRow(
        families.GEMMA3,
        defaults=_GEMMA3_TEXT,
        activation="hidden_activation",
        window="1/6",
        rope="per_kind",
        theta=1e6,
        scale="query_pre_attn_scalar",
        optional=("final_logit_softcapping", "attn_logit_softcapping"),
        **_GEMMA,
    ),
    "phi3": HfRow(
        families.LLAMA,
        hf_names.PHI3,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
        | {"original_max_position_embeddings": 4096},
        window="all",
        longrope_only=True,
    ),
    "granite": HfRow(
        families.LLAMA,
        defaults=_RMS6 | {"max_position_embeddings": 2048, "attention_multiplier": 1.0},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        scale="attention_multiplier",
        scale_as_is=True,
        optional=("embedding_multiplier", "residual_multiplier", "logits_scaling"),
    ),
    "smollm3": HfRow(
        families.LLAMA,
        defaults=_RMS6 | {"max_position_embeddings": 32768, "num_key_value_heads": 4},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        window="nope",
        rope="nope_layers",
        theta=2e6,
        tied=True,
    ),
    "olmo2": HfRow(
        families.OLMO2,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
    ),
    "olmo3": HfRow(
        families.OLMO2,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
        | {"sliding_window": 4096},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        window="1/4",
        rope="unscaled_window",
        theta=5e5,
    ),
    "olmoe": HfRow(
        families.OLMOE,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
        | {"num_experts": 64, "num_experts_per_tok": 8},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        moe="olmoe",
    ),
    "internlm2": HfRow(
        families.LLAMA,
        hf_names.INTERNLM2,
        defaults=_RMS6 | {"max_position_embeddings": 2048, "bias": True},
        qkv_bias="bias",
        out_bias="bias",
    ),
    "minicpm": HfRow(
        families.LLAMA,
        defaults=_RMS6 | {"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        optional=("scale_emb", "scale_depth", "dim_model_base"),
        tied=True,
    ),
    "minicpm3": HfRow(
        families.LLAMA,
        hf_names.DEEPSEEK,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 32768}
        | {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
        | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
        optional=("scale_emb", "scale_depth", "dim_model_base"),
        latent=True,
        tied=True,
    ),
    "baichuan": HfRow(
        families.LLAMA, hf_names.BAICHUAN, defaults=_RMS6 | {"vocab_size": 64000}, refused=_baichuan
    ),
    "deepseek_v2": HfRow(
        families.LLAMA,
        hf_names.DEEPSEEK,
        defaults=_DEEPSEEK
        | {"n_shared_experts": 2, "n_routed_experts": 64, "moe_intermediate_size": 1407}
        | {"max_position_embeddings": 2048, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0}
        | {"topk_method": "greedy", "scoring_func": "softmax"},
        moe="deepseek",
        layout="interleaved",
        latent=True,
    ),
    "deepseek_v3": HfRow(
        families.LLAMA,
        hf_names.DEEPSEEK,
        defaults=_DEEPSEEK
        | {"n_shared_experts": 1, "n_routed_experts": 256, "moe_intermediate_size": 2048}
        | {"max_position_embeddings": 4096, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5}
        | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 8, "topk_group": 4}
        | {"num_experts_per_tok": 8, "norm_topk_prob": True},
        moe="deepseek",
        layout="interleaved",
        latent=True,
    ),
    "gpt2": HfRow(
        families.GPT2,
        hf_names.GPT2,
        defaults={"n_positions": 1024, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
        aliases=_GPT2_ALIASES,
        eps="layer_norm_epsilon",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation="activation_function",
        rope="none",
        tied=True,
    ),
    "gpt_neox": HfRow(
        families.NEOX,
        hf_names.NEOX,
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": 2048}
        | {"attention_bias": True},
        eps="layer_norm_eps",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        partial=0.25,
        partial_key="rotary_pct",
        theta_key="rotary_emb_base",
        placing="neox",
    ),
    "starcoder2": HfRow(
        families.STARCODER2,
        hf_names.STARCODER2,
        defaults={"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "max_position_embeddings": 4096}
        | {"num_key_value_heads": 2, "use_bias": True},
        eps="norm_epsilon",
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        window="all",
        tied=True,
    ),
    "falcon": HfRow(
        families.FALCON,
        hf_names.FALCON,
        defaults={"activation": "gelu", "layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048},
        aliases={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        eps="layer_norm_epsilon",
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        activation="activation",
        placing="falcon",
        tied=True,
    ),
    "stablelm": HfRow(
        families.STABLELM,
        defaults={"hidden_act": "silu", "layer_norm_eps": 1e-5, "max_position_embeddings": 4096}
        | {"num_key_value_heads": 32},
        eps="layer_norm_eps",
        qkv_bias="use_qkv_bias",
        partial=0.25,
        placing="stablelm",
    ),
    "cohere": HfRow(families.COHERE, defaults=_COHERE_DEFAULTS, **_COHERE),
    "cohere2": HfRow(
        families.COHERE,
        defaults=_COHERE_DEFAULTS | {"sliding_window": 4096},
        window="1/4",
        **_COHERE | {"rope": "in_windows", "theta": 10000.0},
    ),
    "glm": HfRow(families.LLAMA, hf_names.GLM, defaults=_GLM_DEFAULTS, **_GLM),
    "glm4": HfRow(families.GLM4, hf_names.GLM4, defaults=_GLM_DEFAULTS, **_GLM),
    "phi": HfRow(
        families.PHI2,
        hf_names.PHI,
        defaults={"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "max_position_embeddings": 2048},
        eps="layer_norm_eps",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        partial=0.5,
    ),
}
