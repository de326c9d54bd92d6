"""A decoder in f64 over one whole sequence: no cache, no batch, no blocks. What the parts of a spec mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    LayerNorm,
    LearnedPositions,
    Norm,
    RmsNorm,
    Rope,
)

__all__ = ["dense_logits"]

Weights = dict[str, np.ndarray]


def dense_logits(spec: DecoderSpec, weights: Weights, ids: list[int]) -> np.ndarray:
    """f64 [len(ids), vocab]. Ropes are unscaled."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["embedding.weight"][ids] * spec.embedding_scale
    if isinstance(spec.positions, LearnedPositions):
        x = x + w["positions.weight"][np.arange(len(ids)) + spec.positions.offset]
    x = norm(w, "embedding_norm", spec.embedding_norm, x)
    for i, layer in enumerate(spec.layers):
        at = f"layers.{i}."
        h = norm(w, f"{at}pre_attention_norm", layer.pre_attention_norm, x)
        a = attention(w, f"{at}attention.", layer.attention, h)  # type: ignore[arg-type]
        a = layer.residual_scale * norm(w, f"{at}post_attention_norm", layer.post_attention_norm, a)
        if layer.residual == "parallel":
            g = h if layer.pre_mlp_norm is None else norm(w, f"{at}pre_mlp_norm", layer.pre_mlp_norm, x)
            x = x + a + layer.residual_scale * mlp(w, f"{at}mlp.", layer.mlp, g)
            continue
        x = x + a
        m = mlp(w, f"{at}mlp.", layer.mlp, norm(w, f"{at}pre_mlp_norm", layer.pre_mlp_norm, x))
        x = x + layer.residual_scale * norm(w, f"{at}post_mlp_norm", layer.post_mlp_norm, m)
    x = norm(w, "final_norm", spec.final_norm, x)
    out = x @ w["embedding.weight" if spec.head.tied else "head.weight"].T
    out = spec.head.scale * (out + (w["head.bias"] if spec.head.bias else 0))
    return out if spec.head.softcap is None else spec.head.softcap * np.tanh(out / spec.head.softcap)


def norm(w: Weights, name: str, part: Norm | None, x: np.ndarray) -> np.ndarray:
    match part:
        case None:
            return x
        case RmsNorm(eps=eps, offset=offset):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (w[f"{name}.weight"] + offset)
        case LayerNorm(eps=eps):
            x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
            x = x * w[f"{name}.weight"] if part.weight else x
            return x + w[f"{name}.bias"] if part.bias else x


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def attention(w: Weights, at: str, a: Attention, h: np.ndarray) -> np.ndarray:
    n = len(h)
    q = linear(w, f"{at}q", h)
    k = linear(w, f"{at}k", h)
    if a.qk_norm_span == "whole":
        q, k = norm(w, f"{at}q_norm", a.q_norm, q), norm(w, f"{at}k_norm", a.k_norm, k)
    q, k = q.reshape(n, a.heads, a.k_dim), k.reshape(n, a.kv_heads, a.k_dim)
    if a.qk_norm_span == "head":
        q, k = norm(w, f"{at}q_norm", a.q_norm, q), norm(w, f"{at}k_norm", a.k_norm, k)
    v = linear(w, f"{at}v", h).reshape(n, a.kv_heads, a.v_dim)
    if isinstance(a.positions, Rope):
        q, k = rotate(a.positions, q), rotate(a.positions, k)
    out = np.empty((n, a.heads, a.v_dim))
    for head in range(a.heads):
        kv = head // (a.heads // a.kv_heads)
        for p in range(n):
            low = 0 if a.window is None else max(0, p - a.window + 1)
            s = k[low : p + 1, kv] @ q[p, head] * a.scale
            s = s if a.softcap is None else a.softcap * np.tanh(s / a.softcap)
            e = np.exp(s)
            total = e.sum() + (math.exp(w[f"{at}sinks"][head]) if a.sinks else 0)
            out[p, head] = e @ v[low : p + 1, kv] / total
    return linear(w, f"{at}o", out.reshape(n, -1))


def rotate(rope: Rope, x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for i in range(rope.dim // 2):
        a, b = (2 * i, 2 * i + 1) if rope.layout == "interleaved" else (i, i + rope.dim // 2)
        angle = np.arange(len(x))[:, None] * rope.base ** (-2 * i / rope.dim)
        c, s = np.cos(angle), np.sin(angle)
        out[..., a], out[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
    return out


def mlp(w: Weights, at: str, m: Any, h: np.ndarray) -> np.ndarray:
    up = linear(w, f"{at}up", h)
    inner = act(m.activation, linear(w, f"{at}gate", h)) * up if m.gated else act(m.activation, up)
    return linear(w, f"{at}down", inner)


def act(kind: str, x: np.ndarray) -> np.ndarray:
    match kind:
        case "silu":
            return x / (1 + np.exp(-x))
        case "gelu":
            return x * np.vectorize(lambda t: 0.5 * (1 + math.erf(t / math.sqrt(2))))(x)
        case "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case "relu":
            return np.maximum(x, 0)
        case _:
            return np.maximum(x, 0) ** 2
