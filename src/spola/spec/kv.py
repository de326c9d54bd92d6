"""Which layers share a block table: DecoderSpec -> KvGroups. Allocates nothing."""

from __future__ import annotations

from typing import Literal

from spola.core.errors import ConfigError, ModelError
from spola.core.runner import KV_TYPES, KvGroup
from spola.spec.decoder import Attention, DecoderSpec, LatentAttention

__all__ = ["kv_groups"]

_Kind = Literal["full", "window", "latent"]


def kv_groups(spec: DecoderSpec, k_dtype: str = "f16", v_dtype: str = "f16") -> tuple[KvGroup, ...]:
    """The groups of ``spec``, by first layer: layers of equal heads, dimensions and reach share one.

    Raises ConfigError for an unknown KV type, ModelError for an attention part that has no cache layout.
    """
    for dtype in (k_dtype, v_dtype):
        if dtype not in KV_TYPES:
            raise ConfigError(f"KV type {dtype!r}: use one of {', '.join(KV_TYPES)}")
    members: dict[tuple[int, int, int, _Kind, int], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        match layer.attention:
            case Attention(kv_heads=heads, k_dim=k_dim, v_dim=v_dim, window=window):
                kind: _Kind = "full" if window is None else "window"
                key = (heads, k_dim, v_dim, kind, window or 0)
            case LatentAttention() as latent:
                if k_dtype != v_dtype:
                    raise ConfigError(
                        f"latent attention keeps K and V as one: give one KV type, not {k_dtype},{v_dtype}"
                    )
                key = (1, latent.absorbed.k_dim, latent.absorbed.v_dim, "latent", 0)
            case other:
                raise ModelError(f"layer {index}: {type(other).__name__} has no KV cache layout")
        members.setdefault(key, []).append(index)
    return tuple(
        KvGroup(
            layers=tuple(layers),
            heads=heads,
            k_dim=k_dim,
            v_dim=v_dim,
            kind=kind,
            window=window,
            k_dtype=k_dtype,
            v_dtype=v_dtype,
        )
        for (heads, k_dim, v_dim, kind, window), layers in members.items()
    )
