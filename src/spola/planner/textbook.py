"""The formulas of the text-books, in their plain form: what an exam or an interview asks.

All take plain numbers; the exact ones (blocks with scales, windows, experts) are ``spec.cost``. Sizes are in
bytes.
"""

from __future__ import annotations

__all__ = [
    "arithmetic_intensity",
    "decode_tok_s",
    "kv_bytes",
    "kv_bytes_per_token",
    "latency_s",
    "littles_law",
    "prefill_s",
    "ridge",
    "weight_bytes",
]


def weight_bytes(parameters: float, bits: float) -> float:
    """parameters x bits / 8."""
    return parameters * bits / 8


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_value: float = 2) -> float:
    """2 (K and V) x layers x KV heads x head dimension x bytes per value."""
    return 2 * layers * kv_heads * head_dim * bytes_per_value


def kv_bytes(per_token: float, tokens: int, requests: int = 1) -> float:
    """bytes per token x tokens x requests."""
    return per_token * tokens * requests


def decode_tok_s(moved_bytes: float, bytes_per_s: float, batch: int = 1) -> float:
    """batch x bandwidth / bytes that a step reads: the bound of the memory on decode."""
    return batch * bytes_per_s / moved_bytes


def prefill_s(parameters: float, tokens: int, flops_per_s: float) -> float:
    """2 x parameters x tokens / peak: the bound of the arithmetic on prefill."""
    return 2 * parameters * tokens / flops_per_s


def arithmetic_intensity(batch: int, bytes_per_parameter: float) -> float:
    """2 x batch / bytes per parameter: operations for each byte of weights that a decode step reads."""
    return 2 * batch / bytes_per_parameter


def ridge(flops_per_s: float, bytes_per_s: float) -> float:
    """peak / bandwidth: the intensity from which on arithmetic is the limit."""
    return flops_per_s / bytes_per_s


def latency_s(ttft_s: float, tpot_s: float, tokens: int) -> float:
    """TTFT + TPOT x (tokens - 1)."""
    return ttft_s + tpot_s * (tokens - 1)


def littles_law(rate: float, latency_s: float) -> float:
    """rate x latency: requests that are in the system on average."""
    return rate * latency_s
