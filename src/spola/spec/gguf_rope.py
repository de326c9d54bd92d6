"""The rope scaling of a GGUF file. Follows what its writers and readers mean by the keys.

GGUF has no type for Llama 3.1's rule: files bring its divisors ready-made as tensor ``rope_freqs``.
"""

from __future__ import annotations

import math

from spola.core.errors import ModelError
from spola.spec.decoder import (
    LinearScaling,
    Llama3Scaling,
    LongRopeTensors,
    NoScaling,
    RopeScaling,
    YarnScaling,
)
from spola.spec.gguf_keys import Keys

__all__ = ["ROPE_FREQS", "ROPE_LONG", "ROPE_SHORT", "read_scaling"]

ROPE_FREQS = "rope_freqs.weight"
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

_TYPES = ("none", "linear", "yarn", "llama3", "longrope")
_MAX_FACTOR = 1e6


def read_scaling(
    keys: Keys, context: int, base: float, *, has_factors: bool, has_long: bool = False
) -> RopeScaling:
    """The scaling that keys ``rope.scaling.*`` ask for.

    ``has_factors``, ``has_long``: the file brings the divisors of Llama 3.1's rule, or LongRoPE's two sets.
    ``base`` is that of the rope; ``context`` stands in for a missing original length. Without a type, a
    factor means linear; a factor of 0 means none. Raises ModelError naming the key.
    """
    kind = keys.choice("rope.scaling.type", _TYPES)
    factor = keys.optional_number("rope.scaling.factor", 0.0, _MAX_FACTOR)
    if factor is None:
        factor = keys.optional_number("rope.scale_linear", 0.0, _MAX_FACTOR)
    original = keys.optional_integer("rope.scaling.original_context_length", 1, (1 << 31) - 1)
    attention = keys.number("rope.scaling.attn_factor", 1e-3, 1e3, default=1.0)
    yarn = _yarn_keys(keys)
    if kind == "longrope" and not has_long:
        raise ModelError(f"key {keys.arch}.rope.scaling.type is longrope, but tensor {ROPE_LONG} is missing")
    if has_long:
        if kind not in (None, "none", "longrope"):
            raise ModelError(
                f"key {keys.arch}.rope.scaling.type is {kind}, but the file has tensor {ROPE_LONG}"
            )
        return LongRopeTensors(ROPE_SHORT, ROPE_LONG, original or context, attention)
    if kind == "llama3":
        return _llama3(keys, factor, original or context, has_factors)
    if kind != "yarn":
        if attention != 1.0:
            raise ModelError(
                f"key {keys.arch}.rope.scaling.attn_factor is {attention:g}, which only yarn scaling has"
            )
        if kind == "none" or not factor or factor == 1.0:
            return NoScaling()
        return LinearScaling(factor)
    if not factor or factor < 1.0:
        raise ModelError(f"key {keys.arch}.rope.scaling.factor must be at least 1 for yarn, not {factor}")
    if base <= 1.0:
        raise ModelError(f"key {keys.arch}.rope.freq_base must be above 1 for yarn, not {base:g}")
    if yarn["beta_slow"] >= yarn["beta_fast"]:
        raise ModelError(f"key {keys.arch}.rope.scaling.yarn_beta_slow must be below yarn_beta_fast")
    return YarnScaling(
        factor=factor,
        original_context=original or context,
        beta_fast=yarn["beta_fast"],
        beta_slow=yarn["beta_slow"],
        extrapolation=yarn["extrapolation"],
        attention_factor=attention * _magnitude(factor, yarn),
    )


def _yarn_keys(keys: Keys) -> dict[str, float]:
    prefix = "rope.scaling.yarn_"
    extrapolation = keys.number(f"{prefix}ext_factor", -1.0, 1.0, default=1.0)
    return {
        "beta_fast": keys.number(f"{prefix}beta_fast", 1e-3, 1e6, default=32.0),
        "beta_slow": keys.number(f"{prefix}beta_slow", 1e-3, 1e6, default=1.0),
        "extrapolation": 1.0 if extrapolation < 0 else extrapolation,  # negative means unset
        "attention": keys.number(f"{prefix}attn_factor", 1e-3, 1e3, default=1.0),
        "log_multiplier": keys.number(f"{prefix}log_multiplier", 0.0, 1e3, default=0.0),
    }


def _magnitude(factor: float, yarn: dict[str, float]) -> float:
    """What cos and sin are multiplied with: YaRN's 0.1 ln(factor) + 1, over that of ``log_multiplier``.

    The key ``yarn_log_multiplier`` holds a tenth of the checkpoint's ``mscale_all_dim``. Without
    extrapolation the correction is off.
    """
    if yarn["extrapolation"] == 0.0:
        return yarn["attention"]
    log = math.log(factor)
    return yarn["attention"] * (0.1 * log + 1.0) / (yarn["log_multiplier"] * log + 1.0)


def _llama3(keys: Keys, factor: float | None, original: int, has_factors: bool) -> RopeScaling:
    low = keys.number("rope.scaling.low_freq_factor", 1e-3, 1e6, default=1.0)
    high = keys.number("rope.scaling.high_freq_factor", 1e-3, 1e6, default=4.0)
    if has_factors:
        return NoScaling()  # the tensor holds the same rule, already computed
    if not factor or factor < 1.0:
        raise ModelError(f"key {keys.arch}.rope.scaling.factor must be at least 1 for llama3, not {factor}")
    if low >= high:
        raise ModelError(f"key {keys.arch}.rope.scaling.low_freq_factor must be below high_freq_factor")
    return Llama3Scaling(factor, low, high, original)
