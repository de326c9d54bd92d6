"""Latent attention (also MiniCPM3's) and the experts of DeepSeek-V2 and V3 as a ``config.json`` states them.

Follows the library's classes of both types. What they do alike is told apart by keys, not by the type:
``topk_method`` and ``scoring_func``, where a file has them.
"""

from __future__ import annotations

import math

from spola.core.errors import ModelError
from spola.spec.decoder import Activation, DenseMlp, LatentAttention, MoeMlp, NoScaling, RmsNorm, Router
from spola.spec.hf_config import MAX_WIDTH, HfConfig, show
from spola.spec.hf_rope import read_rope, rope_parameters
from spola.spec.hf_rows import HfRow

__all__ = ["latent_attention", "latent_mlps"]

_EPS = 1e-6  # of the norms of latents, whatever rms_norm_eps says


def latent_attention(config: HfConfig, row: HfRow, hidden: int, heads: int, context: int) -> LatentAttention:
    """The attention of every layer. Raises ModelError naming the key at fault."""
    if (config.optional_integer("num_key_value_heads", 1, MAX_WIDTH) or heads) != heads:
        raise ModelError(
            "config.json: num_key_value_heads must equal num_attention_heads in latent attention"
        )
    nope = config.integer("qk_nope_head_dim", 1, MAX_WIDTH)
    turned = config.integer("qk_rope_head_dim", 2, MAX_WIDTH)
    for key, value in (("head_dim", turned), ("qk_head_dim", nope + turned)):  # what the library derives
        if (config.optional_integer(key, 1, MAX_WIDTH) or value) != value:
            raise ModelError(f"config.json: {key} must be {value}, which the other dimensions give")
    values = rope_parameters(config)
    rope = read_rope(
        config,
        values,
        head_dim=turned,
        theta=config.number(row.theta_key, 1.0, 1e15, default=row.theta),
        partial=1.0,
        context=context,
        layout="interleaved" if config.flag("rope_interleave", row.layout == "interleaved") else "half",
    )
    scale = float((nope + turned) ** -0.5)
    over = values.get("mscale_all_dim")
    if over and not isinstance(rope.scaling, NoScaling):  # checked by read_rope
        scale *= (0.1 * over * math.log(max(values["factor"], 1.0)) + 1.0) ** 2
    return LatentAttention(
        heads=heads,
        q_rank=config.optional_integer("q_lora_rank", 1, MAX_WIDTH),
        kv_rank=config.integer("kv_lora_rank", 1, MAX_WIDTH),
        nope_dim=nope,
        rope_dim=turned,
        v_dim=config.optional_integer("v_head_dim", 1, MAX_WIDTH) or hidden // heads,
        scale=scale,
        positions=rope,
        norm=RmsNorm(_EPS),
    )


def latent_mlps(
    config: HfConfig, dense: DenseMlp, n: int, activation: Activation
) -> tuple[DenseMlp | MoeMlp, ...]:
    """The first ``first_k_dense_replace`` layers are dense, the others have experts."""
    if config.get("n_routed_experts") is None:
        return (dense,) * n
    if config.get("moe_layer_freq") not in (None, 1):
        raise ModelError(
            "config.json: moe_layer_freq must be 1; layers between those of experts are not done"
        )
    first = config.integer("first_k_dense_replace", 0, 4096)
    ff = config.integer("moe_intermediate_size", 1, MAX_WIDTH)
    count = config.integer("n_routed_experts", 1, 1 << 16)
    shared = config.optional_integer("n_shared_experts", 1, 1 << 16)
    router, used = _router(config, count), config.integer("num_experts_per_tok", 1, count)
    if used > count // router.groups * router.groups_used:
        raise ModelError("config.json: num_experts_per_tok is more than topk_group groups have")
    moe = MoeMlp(
        experts=count,
        used=used,
        expert=DenseMlp(ff, activation),
        router=router,
        shared=None if shared is None else DenseMlp(ff * shared, activation),
    )
    return tuple(dense if i < first else moe for i in range(n))


def _router(config: HfConfig, count: int) -> Router:
    method, scoring = config.get("topk_method"), config.get("scoring_func")
    if (method, scoring) not in (
        ("greedy", "softmax"),
        ("group_limited_greedy", "softmax"),
        ("noaux_tc", "sigmoid"),
    ):
        raise ModelError(
            f"config.json: topk_method {show(method)} with scoring_func {show(scoring)} is not supported"
        )
    normalise = config.flag("norm_topk_prob")
    if normalise and scoring == "softmax":
        raise ModelError("config.json: norm_topk_prob is not supported with scoring_func softmax")
    groups = used = 1
    if method != "greedy":
        groups = config.integer("n_group", 1, count)
        used = config.integer("topk_group", 1, groups)
        if count % groups or (method == "noaux_tc" and count // groups < 2):
            raise ModelError(f"config.json: n_group {groups} does not fit n_routed_experts {count}")
    else:
        config.get("n_group"), config.get("topk_group")  # files name them, and they have no effect
    return Router(
        scoring=scoring,
        normalise=normalise,
        scale=config.number("routed_scaling_factor", 0.0, 1e6),
        selection_bias=method == "noaux_tc",
        groups=groups,
        groups_used=used,
    )
