"""Latent attention and the routing of DeepSeek-V2 and V3 as a GGUF file states them.

Files give the sizes of the absorbed form: one KV head, whose key is latent and rotated dimensions together;
the sizes of a head have names of their own. Reads no tensor data.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from spola.core.errors import ModelError
from spola.spec.decoder import DecoderSpec, LatentAttention, MoeMlp, Norm, Rope, Router, YarnScaling
from spola.spec.gguf_keys import MAX_WIDTH, Keys
from spola.spec.gguf_rope import read_scaling
from spola.spec.sources import TensorTable

__all__ = ["latent_attention", "latent_keys", "latent_router"]


def latent_attention(keys: Keys, heads: int, context: int, norm: Norm) -> LatentAttention:
    """The attention of every layer. Raises ModelError naming the key at fault."""
    rank = keys.integer("attention.kv_lora_rank", 1, MAX_WIDTH)
    turned = keys.integer("rope.dimension_count", 2, MAX_WIDTH)
    q_dim = _head(keys, "key_length", turned + 1)
    rope, factor = _rope(keys, turned, context)
    return LatentAttention(
        heads=heads,
        q_rank=keys.optional_integer("attention.q_lora_rank", 1, MAX_WIDTH),
        kv_rank=rank,
        nope_dim=q_dim - turned,
        rope_dim=turned,
        v_dim=_head(keys, "value_length", 1),
        scale=float(q_dim**-0.5) * factor,
        positions=rope,
        norm=norm,
    )


def _head(keys: Keys, name: str, low: int) -> int:
    """Dimensions of one head; files made before the absorbed form keep them under the plain name."""
    plain = keys.optional_integer(f"attention.{name}", 1, MAX_WIDTH)
    value = keys.optional_integer(f"attention.{name}_mla", low, MAX_WIDTH)
    if value is None and plain is not None and plain < low:
        raise ModelError(f"key {keys.arch}.attention.{name} must be at least {low}, not {plain}")
    return value or plain or keys.integer(f"attention.{name}_mla", low, MAX_WIDTH)


def _rope(keys: Keys, dim: int, context: int) -> tuple[Rope, float]:
    """The rope, and what YaRN multiplies scores with.

    ``yarn_log_multiplier`` is a tenth of the checkpoint's ``mscale_all_dim``, which its ``mscale`` equals: so
    their quotient, the factor on cosine and sine, is 1.
    """
    if dim % 2:
        raise ModelError(f"key {keys.arch}.rope.dimension_count must be even, not {dim}")
    base = keys.number("rope.freq_base", 1.0, 1e15, default=10000.0)
    scaling = read_scaling(keys, context, base, has_factors=False)
    factor = 1.0
    over = keys.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, default=0.0)
    if isinstance(scaling, YarnScaling) and over:
        scaling = replace(scaling, attention_factor=1.0)
        factor = (over * math.log(scaling.factor) + 1.0) ** 2
    return Rope(dim, base, "interleaved", scaling), factor


def latent_router(keys: Keys, tensors: TensorTable, experts: int, layer: int) -> Router:
    """How layer ``layer`` chooses experts. Groups count as the model's own rule has it, by the scoring."""
    function = keys.optional_integer("expert_gating_func", 0, 2) or 1
    normalise = keys.get("expert_weights_norm")
    if not isinstance(normalise, bool | None):
        raise ModelError(f"key {keys.arch}.expert_weights_norm must be true or false")
    groups = keys.optional_integer("expert_group_count", 0, experts) or 1
    used = keys.optional_integer("expert_group_used_count", 0, groups) or groups
    bias = f"blk.{layer}.exp_probs_b.bias" in tensors
    if experts % groups or (bias and experts // groups < 2):
        raise ModelError(
            f"key {keys.arch}.expert_group_count is {groups}, which does not fit {experts} experts"
        )
    if keys.integer("expert_used_count", 1, experts) > experts // groups * used:
        raise ModelError(f"key {keys.arch}.expert_used_count is more than the groups used have")
    return Router(
        scoring="softmax" if function == 1 else "sigmoid",
        normalise=bool(normalise),
        scale=keys.number("expert_weights_scale", 0.0, 1e6, default=1.0) or 1.0,
        selection_bias=bias,
        groups=groups,
        groups_used=used,
    )


def latent_keys(spec: DecoderSpec) -> dict[str, Any]:
    """The keys that ``latent_attention`` and ``latent_router`` read, of a model from elsewhere."""
    a = spec.layers[0].attention
    assert isinstance(a, LatentAttention)
    keys: dict[str, Any] = {
        "attention.key_length_mla": a.q_dim,
        "attention.value_length_mla": a.v_dim,
        "attention.kv_lora_rank": a.kv_rank,
        "leading_dense_block_count": sum(not isinstance(layer.mlp, MoeMlp) for layer in spec.layers),
    }
    if a.q_rank is not None:
        keys["attention.q_lora_rank"] = a.q_rank
    scaling = getattr(a.positions, "scaling", None)
    if isinstance(scaling, YarnScaling) and scaling.factor > 1.0:
        over = math.sqrt(a.scale * math.sqrt(a.q_dim)) - 1.0
        keys["rope.scaling.yarn_log_multiplier"] = over / math.log(scaling.factor)
    moe = next((layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoeMlp)), None)
    if moe is None:
        return keys
    r = moe.router
    keys |= {
        "expert_shared_count": 0 if moe.shared is None else moe.shared.ff // moe.expert.ff,
        "expert_weights_scale": r.scale,
        "expert_weights_norm": r.normalise,
        "expert_gating_func": 2 if r.scoring == "sigmoid" else 1,
    }
    if r.groups > 1:
        keys |= {"expert_group_count": r.groups, "expert_group_used_count": r.groups_used}
    return keys
