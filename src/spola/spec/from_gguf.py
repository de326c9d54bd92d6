"""GGUF metadata and tensor table -> DecoderSpec, for the architectures of a small table.

Keys are those of the GGUF specification (docs/gguf.md of the ggml repository) and defaults are those that
its writers count on. Every key is checked for type and range, every tensor for its shape. Reads no file and
decodes nothing; a tokenizer is looked at for its size only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spola.core.errors import ModelError
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    Head,
    Layer,
    RmsNorm,
    Rope,
)
from spola.spec.gguf_keys import Keys
from spola.spec.gguf_rope import ROPE_FREQS, read_scaling
from spola.spec.manifest import check_tensors

__all__ = ["SUPPORTED", "TensorTable", "from_gguf"]

# GGUF tensor name -> (DType name, shape with the innermost dimension last).
TensorTable = Mapping[str, tuple[str, tuple[int, ...]]]

# Keys of other architectures that would change the output: obeying them is not written, so a file that sets
# one to anything but its neutral value is refused.
_NEUTRAL: dict[str, Any] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "use_parallel_residual": False,
    "rope.scaling.alpha": 0.0,
}

MAX_LAYERS = 4096
MAX_HEADS = 65536
MAX_WIDTH = 1 << 24
MAX_CONTEXT = (1 << 31) - 1


def from_gguf(metadata: Mapping[str, Any], tensors: TensorTable) -> tuple[DecoderSpec, list[str]]:
    """The model that a GGUF file describes, and warnings, one line each.

    ``metadata``: key -> int, float, bool, str or list of them. Raises ModelError naming the key or tensor
    at fault, or the architecture with the supported ones.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise ModelError("key general.architecture is missing or not a string; this is no model file")
    read = SUPPORTED.get(arch)
    if read is None:
        names = ", ".join(sorted(SUPPORTED))
        raise ModelError(f"architecture {arch[:64]!r} is not supported; supported are: {names}")
    keys = Keys(metadata, arch)
    spec = read(keys, tensors)
    warnings = check_tensors(spec, tensors)
    return spec, warnings + keys.unread(_NEUTRAL)


def _embedding(keys: Keys, tensors: TensorTable, hidden: int) -> int:
    """Rows of the embedding, which are the vocabulary; a shorter tokenizer leaves padding rows."""
    name = "token_embd.weight"
    if name not in tensors:
        raise ModelError(f"tensor {name} is missing; the file is incomplete or holds a vocabulary only")
    shape = tuple(tensors[name][1])
    if len(shape) != 2 or shape[1] != hidden or shape[0] < 1:
        raise ModelError(f"tensor {name} has shape {list(shape)}, expected [vocabulary, {hidden}]")
    declared = keys.optional_integer("vocab_size", 1, MAX_WIDTH)
    if declared is not None and declared > shape[0]:
        raise ModelError(f"key {keys.arch}.vocab_size is {declared}, but {name} has {shape[0]} rows")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > shape[0]:
        raise ModelError(
            f"key tokenizer.ggml.tokens has {len(tokens)} entries, but {name} has only {shape[0]} rows"
        )
    return shape[0]


def _present(tensors: TensorTable, names: list[str], what: str) -> bool:
    """Whether all of ``names`` are there; ModelError when only some are."""
    there = [name for name in names if name in tensors]
    if there and len(there) != len(names):
        missing = next(name for name in names if name not in tensors)
        raise ModelError(f"tensor {missing} is missing, while other {what} are present ({there[0]})")
    return bool(there)


def _refuse_non_neutral(keys: Keys) -> None:
    for key, neutral in _NEUTRAL.items():
        value = keys.get(key)
        if value is not None and value != neutral:
            raise ModelError(f"key {keys.arch}.{key} is {value!r}; only {neutral!r} is supported")


def _head_dims(keys: Keys, hidden: int, heads: tuple[int, ...]) -> tuple[int, int]:
    """k and v dimensions of a head: the keys, else hidden / heads of the first layer."""
    k_dim = keys.optional_integer("attention.key_length", 1, MAX_WIDTH)
    v_dim = keys.optional_integer("attention.value_length", 1, MAX_WIDTH)
    if (k_dim is None or v_dim is None) and hidden % heads[0]:
        raise ModelError(
            f"key {keys.arch}.attention.head_count is {heads[0]}, which does not divide embedding_length"
            f" {hidden}; {keys.arch}.attention.key_length and value_length are needed then"
        )
    return k_dim or hidden // heads[0], v_dim or hidden // heads[0]


def _llama(keys: Keys, tensors: TensorTable) -> DecoderSpec:
    """Llama 1 to 3, Mistral, SmolLM and others that were converted under their name."""
    _refuse_non_neutral(keys)
    hidden = keys.integer("embedding_length", 1, MAX_WIDTH)
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    context = keys.integer("context_length", 1, MAX_CONTEXT)
    heads = keys.per_layer("attention.head_count", n_layers, 1, MAX_HEADS)
    kv_heads = keys.per_layer("attention.head_count_kv", n_layers, 1, MAX_HEADS, default=heads)
    ff = keys.per_layer("feed_forward_length", n_layers, 1, MAX_WIDTH)
    eps = keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0)
    k_dim, v_dim = _head_dims(keys, hidden, heads)
    rope = _rope(keys, tensors, k_dim, context)
    window = keys.optional_integer("attention.sliding_window", 0, MAX_CONTEXT) or None
    norm = RmsNorm(eps)
    layers = []
    for i in range(n_layers):
        if heads[i] % kv_heads[i]:
            raise ModelError(
                f"key {keys.arch}.attention.head_count is {heads[i]} in layer {i}, which is no multiple of"
                f" head_count_kv {kv_heads[i]}"
            )
        blk = f"blk.{i}."
        qkv = [f"{blk}attn_{x}.bias" for x in "qkv"]
        ffn = [f"{blk}ffn_{x}.bias" for x in ("gate", "up", "down")]
        attention = Attention(
            heads=heads[i],
            kv_heads=kv_heads[i],
            k_dim=k_dim,
            v_dim=v_dim,
            scale=k_dim**-0.5,
            positions=rope,
            window=window,
            qkv_bias=_present(tensors, qkv, "attention biases"),
            out_bias=f"{blk}attn_output.bias" in tensors,
        )
        mlp = DenseMlp(ff[i], "silu", bias=_present(tensors, ffn, "MLP biases"))
        layers.append(Layer(attention, mlp, norm, norm))
    return DecoderSpec(
        arch=keys.arch,
        name=keys.text("general.name") or keys.arch,
        vocab=_embedding(keys, tensors, hidden),
        hidden=hidden,
        context=context,
        layers=tuple(layers),
        final_norm=norm,
        head=Head(tied="output.weight" not in tensors),
    )


def _rope(keys: Keys, tensors: TensorTable, k_dim: int, context: int) -> Rope:
    dim = keys.optional_integer("rope.dimension_count", 2, k_dim) or k_dim
    if dim % 2:
        raise ModelError(f"key {keys.arch}.rope.dimension_count must be even, not {dim}")
    base = keys.number("rope.freq_base", 1.0, 1e15, default=10000.0)
    factors = ROPE_FREQS in tensors
    scaling = read_scaling(keys, context, has_factors=factors)
    # GGUF permutes the rows of q and k of this family for interleaved pairs.
    return Rope(dim, base, "interleaved", scaling, ROPE_FREQS if factors else None)


SUPPORTED: dict[str, Callable[[Keys, TensorTable], DecoderSpec]] = {"llama": _llama}
