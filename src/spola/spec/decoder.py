"""DecoderSpec: a decoder-only transformer as data, in a closed vocabulary of parts.

Each part is one of a few frozen records (a tagged union), and every layer lists its own parts, so that a
combination which makes no sense cannot be built. Backends interpret a spec with ``match``; a part that a
backend does not implement is refused by name, never ignored. Factors that depend on the length served
(yarn, longrope) are chosen at load, from the numbers here. Nothing in this module computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Activation",
    "Alibi",
    "Attention",
    "DecoderSpec",
    "DenseMlp",
    "Head",
    "LatentAttention",
    "Layer",
    "LayerNorm",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "LongRopeTensors",
    "MoeMlp",
    "NoPositions",
    "NoScaling",
    "Norm",
    "Positions",
    "RmsNorm",
    "Rope",
    "RopeScaling",
    "Router",
    "YarnScaling",
    "absorbed",
]

# silu_1702: x * sigmoid(1.702 x).
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "silu_1702"]


# --- norms -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """y = x / sqrt(mean(x^2) + eps) * (weight + offset). Zhang and Sennrich, arXiv 1910.07467."""

    eps: float
    offset: float = 0.0  # Gemma checkpoints store weight - 1; GGUF files already hold the sum


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias. Ba et al., arXiv 1607.06450."""

    eps: float
    weight: bool = True
    bias: bool = True


Norm = RmsNorm | LayerNorm


# --- positions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoScaling:
    """Rope frequencies as they are."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by ``factor`` (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's rule: long wavelengths divided by ``factor``, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp over dimensions between interpolation and extrapolation.

    ``attention_factor`` multiplies cos and sin; None means the paper's 0.1 * ln(factor) + 1.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True  # the ramp's ends rounded outwards to whole dimensions


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753): one divisor per frequency, one set for short and one for long."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    attention_factor: float | None = None


@dataclass(frozen=True, slots=True)
class LongRopeTensors:
    """LongRoPE whose divisors lie in two tensors of the file, named as in ``Rope.factors``."""

    short: str
    long: str
    original_context: int
    attention_factor: float


RopeScaling = NoScaling | LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling | LongRopeTensors


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (arXiv 2104.09864) on the first ``dim`` dimensions of each head.

    ``interleaved`` rotates pairs (2i, 2i + 1), as GGUF's llama files are permuted for; ``half`` rotates
    (i, i + dim / 2), as Hugging Face checkpoints do. ``factors`` names a tensor of dim / 2 divisors of the
    frequencies (``rope_freqs`` in GGUF), or None.
    """

    dim: int
    base: float
    layout: Literal["interleaved", "half"]
    scaling: RopeScaling = field(default_factory=NoScaling)
    factors: str | None = None


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A table of ``count`` position vectors added to the embedding; ``offset`` is added to the index."""

    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Alibi:
    """A bias on attention scores, linear in distance (arXiv 2108.12409)."""

    max_bias: float = 8.0


@dataclass(frozen=True, slots=True)
class NoPositions:
    """The layer does not see positions."""


Positions = Rope | LearnedPositions | Alibi | NoPositions


# --- attention -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with ``heads`` query and ``kv_heads`` key/value heads (MHA, GQA, MQA).

    ``scale`` multiplies q.k. ``window`` w: position p sees p - w + 1 .. p. ``softcap`` c: scores become
    c * tanh(s / c). ``sinks``: one learned logit per head in the denominator. ``qk_norm``: a norm on q and
    k, over each head or over the whole vector.
    """

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    positions: Positions
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    qk_norm_span: Literal["head", "whole"] = "head"
    qkv_bias: bool = False
    out_bias: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), always in absorbed form.

    A token keeps one vector for all heads: the normed latent c of ``kv_rank`` dimensions, then a rotated key
    of ``rope_dim``. Head h has k_h = K_h c and v_h = V_h c; its query q_h (``nope_dim``, then ``rope_dim``
    rotated dimensions) is taken into the latent space by K_h transposed, and what it attends to comes back
    through V_h. With ``q_rank`` queries are made of a normed latent of their own. ``norm`` is that of both
    latents; ``v_dim`` the width of v_h; ``positions`` turns the ``rope_dim`` dimensions.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    positions: Positions
    norm: Norm

    @property
    def q_dim(self) -> int:
        """Dimensions of a head's query."""
        return self.nope_dim + self.rope_dim

    @property
    def absorbed(self) -> Attention:
        """What the heads do in the latent space: one KV head, whose value is the first part of its key."""
        k_dim = self.kv_rank + self.rope_dim
        return Attention(self.heads, 1, k_dim, self.kv_rank, self.scale, NoPositions())


def absorbed(attention: Attention | LatentAttention) -> Attention:
    """The attention that is computed over the cache."""
    return attention if isinstance(attention, Attention) else attention.absorbed


# --- MLP -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(act(gate(x)) * up(x)) when gated, else down(act(up(x))).

    ``clamp`` c bounds gate from above by c and up to [-c, c]; then ``up_offset`` is added to up (gpt-oss).
    """

    ff: int
    activation: Activation
    gated: bool = True
    bias: bool = False
    clamp: float | None = None
    up_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Router:
    """How experts are chosen and weighted.

    ``scoring`` makes scores of the router's outputs: softmax over all experts, or the sigmoid of each. The
    best ``used`` are chosen; with ``selection_bias`` by score plus a learned bias that the weight does not
    have (DeepSeek-V3, arXiv 2412.19437). With ``groups`` only the best ``groups_used`` groups of neighbours
    are looked at: a group counts as much as its best expert or, with a selection bias, its best two together.
    ``normalise``: weights are divided by their sum. ``scale`` multiplies them at last. ``bias``: of the
    router's outputs.
    """

    scoring: Literal["softmax", "sigmoid"]
    normalise: bool
    scale: float = 1.0
    bias: bool = False
    selection_bias: bool = False
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """``used`` of ``experts`` experts per token, each a DenseMlp; ``shared`` runs for every token."""

    experts: int
    used: int
    expert: DenseMlp
    router: Router
    shared: DenseMlp | None = None
    shared_gate: bool = False


Mlp = DenseMlp | MoeMlp


# --- the whole -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Serial residual: x += m * post(attn(pre(x))); x += m * post(mlp(pre(x))).

    ``residual`` parallel: x += attn(pre_attn(x)) + mlp(pre_mlp(x)), where pre_mlp None means that the
    MLP shares attention's input norm. A post norm makes a sandwich; a pre norm of None is absent.
    ``residual_scale`` is m (Granite).
    """

    attention: Attention | LatentAttention
    mlp: Mlp
    pre_attention_norm: Norm | None
    pre_mlp_norm: Norm | None
    post_attention_norm: Norm | None = None
    post_mlp_norm: Norm | None = None
    residual: Literal["serial", "parallel"] = "serial"
    residual_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Head:
    """Logits = softcap(scale * (W x + bias)). ``tied``: W is the token embedding."""

    tied: bool
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole model. ``context`` is the length it was trained for, in tokens."""

    arch: str
    name: str
    vocab: int
    hidden: int
    context: int
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    head: Head
    embedding_scale: float = 1.0
    embedding_norm: Norm | None = None
    positions: LearnedPositions | NoPositions = field(default_factory=NoPositions)
