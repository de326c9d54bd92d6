"""Families: what all models of one kind have in common, whatever file they come from.

A row says which norms there are and where, what the MLP looks like and whether q and k are normed. Sizes,
positions and scales are read from the file by ``from_gguf`` and ``from_hf``. Computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spola.spec.decoder import (
    Activation,
    Attention,
    DenseMlp,
    LatentAttention,
    Layer,
    LayerNorm,
    MoeMlp,
    Norm,
    RmsNorm,
)

__all__ = [
    "COHERE",
    "FALCON",
    "GEMMA",
    "GEMMA2",
    "GEMMA3",
    "GLM4",
    "GPT2",
    "GPT_OSS",
    "LLAMA",
    "NEOX",
    "OLMO2",
    "OLMOE",
    "PHI2",
    "QWEN3",
    "STABLELM",
    "STARCODER2",
    "Family",
]

Placement = Literal["pre", "post", "sandwich", "parallel", "parallel_two"]


@dataclass(frozen=True, slots=True)
class Family:
    """``placement`` of the norms: before attention and MLP, after them, or both (sandwich). In the parallel
    ones attention and MLP read the same residual, through one norm or through one each.
    """

    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True  # of LayerNorms
    placement: Placement = "pre"
    activation: Activation = "silu"
    gated: bool = True
    qk_norm: Literal["head", "whole"] | None = None

    def make_norm(self, eps: float, offset: float = 0.0) -> Norm:
        return RmsNorm(eps, offset) if self.norm == "rms" else LayerNorm(eps, bias=self.norm_bias)

    def layer(
        self,
        attention: Attention | LatentAttention,
        mlp: DenseMlp | MoeMlp,
        norm: Norm,
        *,
        placement: Placement | None = None,
        residual_scale: float = 1.0,
    ) -> Layer:
        """A layer with this family's norms, all of them ``norm``; ``placement`` overrides the family's."""
        place = placement or self.placement
        pre = norm if place != "post" else None
        post = norm if place in ("post", "sandwich") else None
        return Layer(
            attention=attention,
            mlp=mlp,
            pre_attention_norm=pre,
            pre_mlp_norm=None if place == "parallel" else pre,
            post_attention_norm=post,
            post_mlp_norm=post,
            residual="parallel" if place.startswith("parallel") else "serial",
            residual_scale=residual_scale,
        )


LLAMA = Family()
QWEN3 = Family(qk_norm="head")
OLMO2 = Family(placement="post", qk_norm="whole")
OLMOE = Family(qk_norm="whole")
GEMMA = Family(activation="gelu_tanh")
GEMMA2 = Family(activation="gelu_tanh", placement="sandwich")
GEMMA3 = Family(activation="gelu_tanh", placement="sandwich", qk_norm="head")
GPT2 = Family(norm="layer", activation="gelu_tanh", gated=False)
NEOX = Family(norm="layer", placement="parallel_two", activation="gelu", gated=False)
PHI2 = Family(norm="layer", placement="parallel", activation="gelu_tanh", gated=False)
STARCODER2 = Family(norm="layer", activation="gelu_tanh", gated=False)
FALCON = Family(norm="layer", placement="parallel", activation="gelu", gated=False)
STABLELM = Family(norm="layer")
COHERE = Family(norm="layer", norm_bias=False, placement="parallel")
GLM4 = Family(placement="sandwich")
GPT_OSS = Family(activation="silu_1702")
