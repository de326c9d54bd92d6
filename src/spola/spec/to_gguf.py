"""DecoderSpec -> the keys of a GGUF file, for models that come from elsewhere; and whether GGUF can say them.

The inverse of ``spec.from_gguf``, which is also the judge: what is written is read back, and a model that
would come back as another one is refused by the part that GGUF has no words for. Writes no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from spola.core.errors import ModelError
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    LatentAttention,
    LayerNorm,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    LongRopeTensors,
    MoeMlp,
    Norm,
    NoScaling,
    RmsNorm,
    Rope,
    YarnScaling,
    absorbed,
)
from spola.spec.from_gguf import from_gguf
from spola.spec.gguf_latent import latent_keys
from spola.spec.gguf_rope import ROPE_FREQS, ROPE_LONG, ROPE_SHORT
from spola.spec.gguf_rows import ROWS, GgufRow
from spola.spec.rope import inverse_frequencies
from spola.spec.sources import TensorTable

__all__ = ["as_gguf_spec", "check_read_back", "difference", "gguf_keys", "rope_divisors"]


def gguf_keys(spec: DecoderSpec, arch: str) -> dict[str, Any]:
    """``{arch}.*`` and ``general.architecture`` for ``spec``, as the ecosystem's writers name them."""
    row = ROWS[arch]
    inner = [absorbed(layer.attention) for layer in spec.layers]
    keys: dict[str, Any] = {
        "context_length": spec.context,
        "embedding_length": spec.hidden,
        "block_count": len(spec.layers),
        "feed_forward_length": _dense_width(spec),
        "attention.head_count": _one([a.heads for a in inner]),
        "attention.head_count_kv": _one([a.kv_heads for a in inner]),
        "attention.key_length": inner[0].k_dim,
        "attention.value_length": inner[0].v_dim,
        "vocab_size": spec.vocab,
    }
    norm = spec.final_norm
    if norm is not None:
        kind = "layer_norm" if isinstance(norm, LayerNorm) else "layer_norm_rms"
        keys[f"attention.{kind}_epsilon"] = norm.eps
    keys |= _rope_keys(spec, row) | _window_keys(spec, row) | _scale_keys(spec, row) | _expert_keys(spec)
    if row.latent:
        keys |= latent_keys(spec)
    if row.placing in ("neox", "stablelm"):
        keys["use_parallel_residual"] = spec.layers[0].residual == "parallel"
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}


def rope_divisors(spec: DecoderSpec) -> dict[str, list[float]]:
    """The tensors of rope divisors that a GGUF file of ``spec`` has, by name."""
    for layer in spec.layers:
        match layer.attention.positions:
            case Rope(scaling=Llama3Scaling()) as rope:
                plain, _ = inverse_frequencies(replace(rope, scaling=NoScaling()), spec.context)
                scaled, _ = inverse_frequencies(rope, spec.context)
                return {ROPE_FREQS: [p / s for p, s in zip(plain, scaled, strict=True)]}
            case Rope(scaling=LongRopeScaling(short=short, long=long)):
                return {ROPE_LONG: list(long), ROPE_SHORT: list(short)}
    return {}


def as_gguf_spec(spec: DecoderSpec, arch: str) -> DecoderSpec:
    """``spec`` as a GGUF file holds it: q and k in its order, sums in norms, divisors as tensors."""
    row = ROWS[arch]

    def norm(value: Norm | None) -> Norm | None:
        return replace(value, offset=0.0) if isinstance(value, RmsNorm) else value

    def rope(value: Any) -> Any:
        if not isinstance(value, Rope):
            return value
        match value.scaling:
            case Llama3Scaling():
                value = replace(value, scaling=NoScaling(), factors=ROPE_FREQS)
            case LongRopeScaling(original_context=original, attention_factor=factor):
                tensors = LongRopeTensors(ROPE_SHORT, ROPE_LONG, original, factor or 1.0)
                value = replace(value, scaling=tensors)
        return replace(value, layout=row.layout)

    layers = []
    for layer in spec.layers:
        a = layer.attention
        attention: Attention | LatentAttention = a
        if isinstance(a, Attention):
            attention = replace(a, positions=rope(a.positions), q_norm=norm(a.q_norm), k_norm=norm(a.k_norm))
        layers.append(
            replace(
                layer,
                attention=attention,
                pre_attention_norm=norm(layer.pre_attention_norm),
                pre_mlp_norm=norm(layer.pre_mlp_norm),
                post_attention_norm=norm(layer.post_attention_norm),
                post_mlp_norm=norm(layer.post_mlp_norm),
            )
        )
    return replace(spec, arch=arch, layers=tuple(layers), final_norm=norm(spec.final_norm))


def check_read_back(spec: DecoderSpec, metadata: Mapping[str, Any], tensors: TensorTable) -> None:
    """Raise ModelError naming the first part of ``spec`` that does not come back from ``metadata``."""
    found, _ = from_gguf(metadata, tensors)
    found_difference = difference(replace(spec, name=""), replace(found, name=""), "")
    if found_difference:
        raise ModelError(
            f"a GGUF file of architecture {spec.arch} cannot say this model's {found_difference}"
        )


def difference(wanted: Any, found: Any, where: str = "") -> str:
    """Path and values of the first difference, or an empty string; floats may differ by an f32 rounding."""
    if is_dataclass(wanted) and type(wanted) is type(found):
        for field in fields(wanted):
            inner = f"{where}.{field.name}" if where else field.name
            text = difference(getattr(wanted, field.name), getattr(found, field.name), inner)
            if text:
                return text
        return ""
    if isinstance(wanted, tuple) and isinstance(found, tuple) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return next((t for i, (a, b) in pairs if (t := difference(a, b, f"{where}[{i}]"))), "")
    if isinstance(wanted, float) and isinstance(found, float):
        same = abs(wanted - found) <= 1e-6 * max(abs(wanted), abs(found))
    else:
        same = wanted == found
    return "" if same else f"{where} {wanted!r}, which would be read as {found!r}"


def _one(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _dense_width(spec: DecoderSpec) -> int | list[int]:
    widths = [layer.mlp.ff if isinstance(layer.mlp, DenseMlp) else 0 for layer in spec.layers]
    experts = next((layer.mlp.expert.ff for layer in spec.layers if isinstance(layer.mlp, MoeMlp)), 0)
    dense = next((w for w in widths if w), experts)
    return _one([w or dense for w in widths])


def _rope_keys(spec: DecoderSpec, row: GgufRow) -> dict[str, Any]:
    """Of a layer that sees everything where there is one: layers with a window have their own rule."""
    ropes = [(absorbed(layer.attention).window, layer.attention.positions) for layer in spec.layers]
    chosen = [p for w, p in ropes if w is None and isinstance(p, Rope)]
    chosen = chosen or [p for _, p in ropes if isinstance(p, Rope)]
    if not chosen:
        return {}
    rope = chosen[0]
    keys: dict[str, Any] = {"rope.dimension_count": rope.dim, "rope.freq_base": rope.base}
    if row.window_rope_base is not None:
        local = next((p for w, p in ropes if w is not None and isinstance(p, Rope)), None)
        if local is not None and local.base != row.window_rope_base:
            keys["rope.freq_base_swa"] = local.base
    match rope.scaling:
        case LinearScaling(factor=factor):
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
        case YarnScaling() as yarn:
            keys |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": yarn.factor,
                "rope.scaling.original_context_length": yarn.original_context,
                "rope.scaling.yarn_beta_fast": yarn.beta_fast,
                "rope.scaling.yarn_beta_slow": yarn.beta_slow,
            }
        case LongRopeScaling(original_context=original, attention_factor=attention):
            keys["rope.scaling.original_context_length"] = original
            keys["rope.scaling.attn_factor"] = attention or 1.0
    return keys


def _window_keys(spec: DecoderSpec, row: GgufRow) -> dict[str, Any]:
    windows = [absorbed(layer.attention).window for layer in spec.layers]
    window = next((w for w in windows if w is not None), None)
    if window is None:
        return {"attention.sliding_window": 0} if row.window_default else {}
    keys: dict[str, Any] = {"attention.sliding_window": window}
    every = row.window_every
    usual = [None if every > 1 and i % every == every - 1 else window for i in range(len(windows))]
    if windows != usual:
        keys["attention.sliding_window_pattern"] = [w is not None for w in windows]
    return keys


def _scale_keys(spec: DecoderSpec, row: GgufRow) -> dict[str, Any]:
    first = absorbed(spec.layers[0].attention)
    values = {
        "attention.scale": first.scale,
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.layers[0].residual_scale,
        "logit_scale": spec.head.scale if row.logits_multiplied else 1.0 / spec.head.scale,
        "attn_logit_softcapping": first.softcap or 0.0,
        "final_logit_softcapping": spec.head.softcap or 0.0,
    }
    return {key: values[key] for key in row.optional}


def _expert_keys(spec: DecoderSpec) -> dict[str, Any]:
    moe = next((layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoeMlp)), None)
    if moe is None:
        return {}
    keys = {
        "expert_count": moe.experts,
        "expert_used_count": moe.used,
        "expert_feed_forward_length": moe.expert.ff,
    }
    if moe.shared is not None:
        keys["expert_shared_feed_forward_length"] = moe.shared.ff
    return keys
