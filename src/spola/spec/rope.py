"""Rope frequencies in f64 for every scaling, at the length that is served. No NumPy, no angles.

Backends multiply positions with these (docs/numerics.md). A ``rope_freqs`` tensor divides them further; that
is the backend's, since this module sees no tensor data.
"""

from __future__ import annotations

import math

from spola.core.errors import ModelError
from spola.spec.decoder import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    LongRopeTensors,
    NoScaling,
    Rope,
    YarnScaling,
)

__all__ = ["factors_tensor", "inverse_frequencies"]


def factors_tensor(rope: Rope, max_model_len: int) -> str | None:
    """The tensor whose values divide the frequencies when ``max_model_len`` positions are served, or None."""
    match rope.scaling:
        case LongRopeTensors(short=short, long=long, original_context=original):
            return long if max_model_len > original else short
        case _:
            return rope.factors


def inverse_frequencies(rope: Rope, max_model_len: int) -> tuple[list[float], float]:
    """Radians per position of each of the dim / 2 pairs, and the factor on cosine and sine.

    ``max_model_len`` chooses between the two sets of LongRoPE: its long one as soon as more positions are
    served than the model was first trained for. Raises ModelError for numbers that do not fit together.
    """
    half = rope.dim // 2
    plain = [rope.base ** (-2.0 * i / rope.dim) for i in range(half)]
    match rope.scaling:
        case NoScaling():
            return plain, 1.0
        case LinearScaling(factor=factor):
            return [f / factor for f in plain], 1.0
        case Llama3Scaling() as scaling:
            return [_llama3(f, scaling) for f in plain], 1.0
        case YarnScaling() as scaling:
            return _yarn(rope, plain, scaling), _yarn_attention(scaling)
        case LongRopeScaling() as scaling:
            return _longrope(plain, scaling, max_model_len), _longrope_attention(scaling, max_model_len)
        case LongRopeTensors(attention_factor=factor):
            return plain, factor


def _llama3(frequency: float, s: Llama3Scaling) -> float:
    """Llama 3.1's rule, by wavelength against the original context (Dubey et al., arXiv 2407.21783)."""
    turns = s.original_context * frequency / (2.0 * math.pi)  # full turns within the original context
    if turns > s.high_freq_factor:
        return frequency
    if turns < s.low_freq_factor:
        return frequency / s.factor
    keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    return (1.0 - keep) * frequency / s.factor + keep * frequency


def _yarn(rope: Rope, plain: list[float], s: YarnScaling) -> list[float]:
    """NTK-by-parts: equations 17 to 23 of arXiv 2309.00071, the ramp over dimension indices."""

    def dimension(turns: float) -> float:
        span = math.log(s.original_context / (turns * 2.0 * math.pi))
        return rope.dim * span / (2.0 * math.log(rope.base))

    low, high = dimension(s.beta_fast), dimension(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = max(high - low, 0.001)
    out = []
    for i, frequency in enumerate(plain):
        ramp = min(max((i - low) / width, 0.0), 1.0)
        keep = (1.0 - ramp) * s.extrapolation
        out.append(frequency / s.factor * (1.0 - keep) + frequency * keep)
    return out


def _yarn_attention(s: YarnScaling) -> float:
    if s.attention_factor is not None:
        return s.attention_factor
    return 0.1 * math.log(s.factor) + 1.0 if s.factor > 1.0 else 1.0


def _longrope(plain: list[float], s: LongRopeScaling, max_model_len: int) -> list[float]:
    divisors = s.long if max_model_len > s.original_context else s.short
    if len(divisors) != len(plain):
        raise ModelError(f"longrope has {len(divisors)} factors, but the rope {len(plain)} frequencies")
    return [f / d for f, d in zip(plain, divisors, strict=True)]


def _longrope_attention(s: LongRopeScaling, max_model_len: int) -> float:
    """sqrt(1 + ln(scale) / ln(original)), section 3.2 of arXiv 2402.13753, unless the model names one."""
    if s.attention_factor is not None:
        return s.attention_factor
    scale = max_model_len / s.original_context
    return math.sqrt(1.0 + math.log(scale) / math.log(s.original_context)) if scale > 1.0 else 1.0
