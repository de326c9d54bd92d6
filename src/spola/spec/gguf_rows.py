"""The architectures of GGUF files, one row each: the family, and how its files differ from the others.

What a row says follows the published models and the programs that write and read such files. Knows no keys
beyond those a row names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from spola.spec import families
from spola.spec.families import Family

__all__ = ["ROWS", "GgufRow"]


def _plain_scale(k_dim: int, hidden: int, heads: int, layers: int) -> float:
    return float(k_dim**-0.5)


def _gemma_scale(big: int) -> Callable[[int, int, int, int], float]:
    """The largest Gemma 2 and 3 divide by the square root of hidden / heads; files do not say so."""

    def scale(k_dim: int, hidden: int, heads: int, layers: int) -> float:
        return float((hidden / heads if layers == big else k_dim) ** -0.5)

    return scale


@dataclass(frozen=True, slots=True)
class GgufRow:
    """``layout`` is how files of this architecture order the rows of q and k (see ``Rope``).

    ``window_every`` n: every n-th layer sees everything and the others a window; 1: all have the window.
    ``window_unscaled``: layers with a window ignore the rope scaling. ``no_rope_every`` n: every n-th layer
    has no rope; ``rope_in_windows``: only layers with a window have one. ``scaled_embedding``: times the
    square root of the width. ``optional`` keys are obeyed by this architecture only, with the value that
    stands for a missing one. ``logits_multiplied``: the key ``logit_scale`` is a factor, not a divisor.
    ``placing``: how a layer tells where its norms are. ``renames``: names in a layer that differ, by
    canonical name, best first. ``stated`` keys must be in the file.
    ``refused``: why a model of so many layers is.
    """

    family: Family
    layout: Literal["interleaved", "half"] = "half"
    scale: Callable[[int, int, int, int], float] = _plain_scale
    window_every: int = 1
    window_default: int | None = None
    window_rope_base: float | None = None
    window_unscaled: bool = False
    no_rope_every: int = 0
    rope_in_windows: bool = False
    logits_multiplied: bool = False
    rope: bool = True
    learned_positions: bool = False
    scaled_embedding: bool = False
    optional: Mapping[str, float | None] = field(default_factory=dict)
    placing: Literal["family", "neox", "falcon", "stablelm"] = "family"
    merged_mlp: bool = False
    normalised_experts: bool = True
    clamp: float | None = None
    up_offset: float = 0.0
    yarn_truncate: bool = True
    renames: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stated: tuple[str, ...] = ()
    latent: bool = False  # DeepSeek-V2's attention and routing
    refused: Callable[[int], str | None] = lambda layers: None


_SOFTCAPS: dict[str, float | None] = {"final_logit_softcapping": None}
_SOFTCAPS_2: dict[str, float | None] = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_LOGITS: dict[str, float | None] = {"logit_scale": None}
_GRANITE: dict[str, float | None] = {
    "attention.scale": None,
    "embedding_scale": None,
    "residual_scale": None,
    "logit_scale": None,
}

# Files made before these keys came leave them to the reader.
_MINICPM: dict[str, float | None] = {"embedding_scale": None, "residual_scale": None, "logit_scale": None}


def _baichuan(layers: int) -> str | None:
    """Files do not say which positions the model has: readers go by its depth."""
    return "it has ALiBi instead of rope (13B), which no backend computes yet" if layers == 40 else None


ROWS: dict[str, GgufRow] = {
    "llama": GgufRow(families.LLAMA, "interleaved"),
    "qwen2": GgufRow(families.LLAMA),
    "qwen2moe": GgufRow(families.LLAMA, normalised_experts=False),
    "qwen3": GgufRow(families.QWEN3),
    "qwen3moe": GgufRow(families.QWEN3),
    "gemma": GgufRow(families.GEMMA, scaled_embedding=True),
    "gemma2": GgufRow(
        families.GEMMA2,
        scale=_gemma_scale(46),
        window_every=2,
        window_default=4096,
        scaled_embedding=True,
        optional=_SOFTCAPS_2,
    ),
    "gemma3": GgufRow(
        families.GEMMA3,
        scale=_gemma_scale(62),
        window_every=6,
        window_rope_base=10000.0,
        window_unscaled=True,
        scaled_embedding=True,
        optional=_SOFTCAPS,
    ),
    "phi3": GgufRow(families.LLAMA, merged_mlp=True),
    "granite": GgufRow(families.LLAMA, "interleaved", optional=_GRANITE),
    "smollm3": GgufRow(families.LLAMA, "interleaved", no_rope_every=4),
    "olmo2": GgufRow(families.OLMO2, window_every=4, window_unscaled=True),
    "olmoe": GgufRow(families.OLMOE, normalised_experts=False),
    "internlm2": GgufRow(families.LLAMA, "interleaved"),
    "minicpm": GgufRow(families.LLAMA, "interleaved", optional=_MINICPM, stated=tuple(_MINICPM)),
    "baichuan": GgufRow(families.LLAMA, "interleaved", refused=_baichuan),
    "deepseek2": GgufRow(families.LLAMA, "interleaved", latent=True),
    "gpt2": GgufRow(families.GPT2, rope=False, learned_positions=True),
    "gptneox": GgufRow(families.NEOX, placing="neox"),
    "starcoder2": GgufRow(families.STARCODER2),
    "falcon": GgufRow(
        families.FALCON,
        placing="falcon",
        renames={"pre_attention_norm": ("attn_norm_2", "attn_norm"), "pre_mlp_norm": ("attn_norm",)},
    ),
    "stablelm": GgufRow(families.STABLELM, placing="stablelm"),
    "phi2": GgufRow(families.PHI2),
    "command-r": GgufRow(families.COHERE, "interleaved", optional=_LOGITS, logits_multiplied=True),
    "cohere2": GgufRow(
        families.COHERE,
        "interleaved",
        window_every=4,
        rope_in_windows=True,
        optional=_LOGITS,
        logits_multiplied=True,
    ),
    "glm4": GgufRow(families.GLM4, "interleaved", merged_mlp=True),
    "gpt-oss": GgufRow(
        families.GPT_OSS,
        window_every=2,
        clamp=7.0,
        up_offset=1.0,
        yarn_truncate=False,
        renames={"pre_mlp_norm": ("post_attention_norm",)},
    ),
    "chatglm": GgufRow(families.LLAMA, "interleaved", merged_mlp=True),
}
