"""What the native decoder computes of a DecoderSpec, and what it adds to norms at load. Lowers nothing."""

from __future__ import annotations

from spola.core.errors import ModelError
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    LatentAttention,
    Layer,
    MoeMlp,
    NoPositions,
    RmsNorm,
    Rope,
)

__all__ = ["check", "norm_offsets"]


def check(spec: DecoderSpec) -> None:
    """Raises ModelError naming the first part of ``spec`` that the native backend does not have yet."""
    for index, layer in enumerate(spec.layers):
        missing = _missing(layer)
        if missing:
            raise ModelError(f"layer {index}: the native backend does not have {missing} yet")


def _missing(layer: Layer) -> str | None:
    match layer.attention:
        case Attention(positions=Rope() | NoPositions()):
            pass
        case LatentAttention(positions=Rope() | NoPositions(), norm=RmsNorm()):
            if layer.residual == "parallel":
                return "latent attention beside its MLP"
        case Attention(positions=positions) | LatentAttention(positions=positions):
            return type(positions).__name__
    match layer.mlp:
        case DenseMlp(gated=False, clamp=float()):
            return "a clamped activation without a gate"
        case DenseMlp():
            return None
        case MoeMlp():
            return "experts beside attention" if layer.residual == "parallel" else None


def norm_offsets(spec: DecoderSpec) -> dict[str, float]:
    """What is added to norm weights when they are loaded, by canonical name, where it is not 0."""
    norms = {"final_norm": spec.final_norm, "embedding_norm": spec.embedding_norm}
    for index, layer in enumerate(spec.layers):
        norms[f"layers.{index}.pre_attention_norm"] = layer.pre_attention_norm
        norms[f"layers.{index}.post_attention_norm"] = layer.post_attention_norm
        norms[f"layers.{index}.pre_mlp_norm"] = layer.pre_mlp_norm
        norms[f"layers.{index}.post_mlp_norm"] = layer.post_mlp_norm
        if isinstance(layer.attention, LatentAttention):
            norms[f"layers.{index}.attention.q_a_norm"] = layer.attention.norm
            norms[f"layers.{index}.attention.kv_a_norm"] = layer.attention.norm
        else:
            norms[f"layers.{index}.attention.q_norm"] = layer.attention.q_norm
            norms[f"layers.{index}.attention.k_norm"] = layer.attention.k_norm
    return {
        f"{name}.weight": norm.offset
        for name, norm in norms.items()
        if isinstance(norm, RmsNorm) and norm.offset != 0.0
    }
