"""The rope of a Hugging Face ``config.json``, in the old spelling (``rope_scaling``) and the new one.

Follows the rules of the ``transformers`` library, whose kinds are: default, linear, llama3, yarn, longrope,
dynamic. The last changes frequencies only of texts longer than ``max_position_embeddings``, which are never
served, so it is the same as default here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from spola.core.errors import ModelError
from spola.spec.decoder import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from spola.spec.hf_config import MAX_CONTEXT, HfConfig, integer, number, show

__all__ = ["read_rope", "rope_parameters"]

_KNOWN = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "beta_fast",
        "beta_slow",
        "original_max_position_embeddings",
        "truncate",
    ),
    "longrope": (
        "factor",
        "attention_factor",
        "short_factor",
        "long_factor",
        "original_max_position_embeddings",
    ),
    "dynamic": ("factor",),  # without effect up to the context, which is the most that is served
    "default": ("factor", "original_max_position_embeddings"),  # without effect there
}
_ALWAYS = ("type", "rope_type", "rope_theta", "partial_rotary_factor", "finetuned", "max_position_embeddings")


def rope_parameters(config: HfConfig, kind: str | None = None) -> dict[str, Any]:
    """The rope's own object of the file, or an empty one.

    ``kind`` (``full_attention``, ``sliding_attention``) picks one where the file has one for each.
    """
    nested = config.mapping("rope_parameters")
    old = config.mapping("rope_scaling")
    if nested is not None and any(key.endswith("_attention") for key in nested):
        chosen = nested.get(kind or "full_attention") or {}
        if not isinstance(chosen, Mapping):
            raise ModelError(f"config.json: rope_parameters.{kind} must be an object")
        return dict(chosen)
    return dict(old or nested or {})


def read_rope(
    config: HfConfig,
    values: Mapping[str, Any],
    *,
    head_dim: int,
    theta: float,
    partial: float,
    context: int,
    longrope_only: bool = False,
    layout: Literal["interleaved", "half"] = "half",
) -> Rope:
    """The rope that ``values`` describe.

    ``theta`` and ``partial`` stand in where ``values`` do not say. ``longrope_only``: every scaling of this
    family is LongRoPE, whatever older files call it (Phi-3).
    """
    where = "rope_parameters"
    theta = number(f"{where}.rope_theta", values.get("rope_theta", theta), 1.0, 1e15)
    partial = number(f"{where}.partial_rotary_factor", values.get("partial_rotary_factor", partial), 0.0, 1.0)
    dim = int(head_dim * partial)
    if dim % 2 or dim < 2:
        raise ModelError(f"config.json: a rope of {dim} of {head_dim} dimensions is not possible")
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "su" or (longrope_only and kind == "yarn"):
        kind = "longrope"
    if not isinstance(kind, str) or kind not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise ModelError(f"config.json: rope type {show(kind)} is not supported; supported are: {known}")
    for key, value in values.items():
        if key not in (*_ALWAYS, *_KNOWN[kind]) and value is not None:
            raise ModelError(f"config.json: {where}.{key[:80]} is not supported for rope type {kind}")
    if kind == "yarn" and theta <= 1.0:
        raise ModelError(f"config.json: {where}.rope_theta must be above 1 for yarn, not {theta:g}")
    return Rope(dim, theta, layout, _scaling(config, kind, values, context))


def _scaling(config: HfConfig, kind: str, values: Mapping[str, Any], context: int) -> RopeScaling:
    def read(key: str, low: float, high: float, default: float | None = None) -> float:
        value = values.get(key, default)
        return number(f"rope_parameters.{key}", default if value is None else value, low, high)

    top = config.optional_integer("original_max_position_embeddings", 1, MAX_CONTEXT)
    inner = values.get("original_max_position_embeddings")
    if inner is not None:
        inner = integer("rope_parameters.original_max_position_embeddings", inner, 1, MAX_CONTEXT)
    original = top or inner or context
    match kind:
        case "linear":
            return LinearScaling(read("factor", 1e-6, 1e6))
        case "llama3":
            low, high = read("low_freq_factor", 1e-3, 1e6), read("high_freq_factor", 1e-3, 1e6)
            if low >= high:
                raise ModelError(
                    "config.json: rope_parameters.low_freq_factor must be below high_freq_factor"
                )
            return Llama3Scaling(read("factor", 1.0, 1e6), low, high, original)
        case "yarn":
            return _yarn(values, read, original, context)
        case "longrope":
            return _longrope(values, original, context)
        case "dynamic":
            read("factor", 1.0, 1e6)
            if original < context:
                raise ModelError(
                    "config.json: dynamic rope scaling from original_max_position_embeddings on is not "
                    "supported; it is where that equals max_position_embeddings"
                )
    return NoScaling()


def _yarn(values: Mapping[str, Any], read: Any, original: int, context: int) -> YarnScaling:
    factor = read("factor", 1.0, 1e6, max(context / original, 1.0))
    attention = values.get("attention_factor")
    if attention is None:
        mscale, over = read("mscale", 0.0, 1e3, 0.0), read("mscale_all_dim", 0.0, 1e3, 0.0)
        log = math.log(factor)
        attention = (0.1 * (mscale if mscale and over else 1.0) * log + 1.0) / (
            0.1 * over * log + 1.0 if mscale and over else 1.0
        )
    fast, slow = read("beta_fast", 1e-3, 1e6, 32.0), read("beta_slow", 1e-3, 1e6, 1.0)
    if slow >= fast:
        raise ModelError("config.json: rope_parameters.beta_slow must be below beta_fast")
    truncate = values.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ModelError("config.json: rope_parameters.truncate must be true or false")
    attention = number("rope_parameters.attention_factor", attention, 1e-3, 1e3)
    return YarnScaling(factor, original, fast, slow, attention_factor=attention, truncate=truncate)


def _longrope(values: Mapping[str, Any], original: int, context: int) -> LongRopeScaling:
    sets = []
    for key in ("short_factor", "long_factor"):
        factors = values.get(key)
        if not isinstance(factors, list) or not factors:
            raise ModelError(f"config.json: rope_parameters.{key} must be a list of numbers")
        sets.append(tuple(number(f"rope_parameters.{key}", f, 1e-6, 1e9) for f in factors))
    attention = values.get("attention_factor")
    if attention is None:
        factor = values.get("factor")
        if factor is None:
            factor = context / original
        factor = number("rope_parameters.factor", factor, 0.0, 1e6)
        if original < 2:
            raise ModelError("config.json: original_max_position_embeddings must be above 1 for longrope")
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    attention = number("rope_parameters.attention_factor", attention, 1e-3, 1e3)
    return LongRopeScaling(sets[0], sets[1], original, attention)
