"""GGUF metadata and tensor table -> DecoderSpec, for the architectures of a table.

Keys are those of the GGUF specification (docs/gguf.md of the ggml repository) and defaults are those that
its writers count on. Every key is checked for type and range, every tensor for its shape. Reads no file and
decodes nothing; a tokenizer is looked at for its size only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spola.core.errors import ModelError
from spola.spec import gguf_parts as parts
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    Head,
    LatentAttention,
    Layer,
    LearnedPositions,
    NoPositions,
    Norm,
)
from spola.spec.gguf_keys import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Keys
from spola.spec.gguf_latent import latent_attention
from spola.spec.gguf_rows import ROWS, GgufRow
from spola.spec.manifest import TensorInfo
from spola.spec.refused import why_file_refused
from spola.spec.sources import Merged, Names, Source, TensorTable, resolve, unused

__all__ = ["SUPPORTED", "TensorTable", "from_gguf", "gguf_sources"]

SUPPORTED = tuple(sorted(ROWS))


def from_gguf(metadata: Mapping[str, Any], tensors: TensorTable) -> tuple[DecoderSpec, list[str]]:
    """The model that a GGUF file describes, and warnings, one line each.

    ``metadata``: key -> int, float, bool, str or list of them. Raises ModelError naming the key or tensor
    at fault, or the architecture with the supported ones.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise ModelError("key general.architecture is missing or not a string; this is no model file")
    row = ROWS.get(arch)
    if row is None:
        raise ModelError(
            f"architecture {arch[:64]!r} is not supported{why_file_refused(arch)}; supported are: "
            f"{', '.join(SUPPORTED)}"
        )
    keys = Keys(metadata, arch)
    spec = _read(keys, tensors, row)
    sources = gguf_sources(spec, tensors)
    parts.refuse_non_neutral(keys)
    return spec, unused(sources, tensors) + keys.unread(parts.NEUTRAL)


def gguf_sources(spec: DecoderSpec, tensors: TensorTable) -> dict[str, Source]:
    """Where in a GGUF file each tensor of ``spec`` lies, by canonical name.

    Raises ModelError naming the first tensor that is missing or has another shape.
    """
    row = ROWS[spec.arch]

    def direct(info: TensorInfo) -> tuple[str, ...]:
        part, kind = info.name.rsplit(".", 1)
        files = row.renames.get(part.rsplit(".", 1)[-1])
        block = info.gguf.rsplit(".", 2)[0]
        return tuple(f"{block}.{file}.{kind}" for file in files) if files else (info.gguf,)

    def experts(info: TensorInfo) -> str | None:
        # Files of early 2024 hold every expert by itself.
        return info.gguf.replace("_exps.", ".{e}.") if info.role == "experts" else None

    merged = [Merged(("attention.q", "attention.k", "attention.v"), "attn_qkv")]
    if row.merged_mlp:
        merged.append(Merged(("mlp.gate", "mlp.up"), "ffn_up"))
    return resolve(spec, Names(direct, tuple(merged), "blk.{i}.", experts, latent="attn_kv_b"), tensors)


@dataclass(frozen=True, slots=True)
class _Sizes:
    hidden: int
    layers: int
    context: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    k_dim: int
    v_dim: int


def _sizes(keys: Keys) -> _Sizes:
    hidden = keys.integer("embedding_length", 1, MAX_WIDTH)
    n = keys.integer("block_count", 1, MAX_LAYERS)
    context = keys.integer("context_length", 1, MAX_CONTEXT)
    heads = keys.per_layer("attention.head_count", n, 1, MAX_HEADS)
    kv_heads = keys.per_layer("attention.head_count_kv", n, 1, MAX_HEADS, default=heads)
    k_dim, v_dim = parts.head_dims(keys, hidden, heads)
    for i in range(n):
        if heads[i] % kv_heads[i]:
            raise ModelError(
                f"key {keys.arch}.attention.head_count is {heads[i]} in layer {i}, which is no multiple of"
                f" head_count_kv {kv_heads[i]}"
            )
    return _Sizes(hidden, n, context, heads, kv_heads, k_dim, v_dim)


def _read(keys: Keys, tensors: TensorTable, row: GgufRow) -> DecoderSpec:
    sizes = _sizes(keys)
    refused = row.refused(sizes.layers)
    if refused is not None:
        raise ModelError(f"this {keys.arch} model is not supported: {refused}")
    norm = row.family.make_norm(parts.epsilon(keys, row.family.norm))
    scales = parts.scales(keys, row, sizes.hidden)
    mlps = parts.mlps(keys, tensors, row, sizes.layers)
    attention: Sequence[Attention | LatentAttention]
    if row.latent:
        attention = [latent_attention(keys, heads, sizes.context, norm) for heads in sizes.heads]
    else:
        attention = _attention(keys, tensors, row, sizes, norm, scales)
    layers: list[Layer] = []
    for i in range(sizes.layers):
        place = parts.placement(keys, tensors, row, i)
        layers.append(
            row.family.layer(attention[i], mlps[i], norm, placement=place, residual_scale=scales.residual)
        )
    return DecoderSpec(
        arch=keys.arch,
        name=keys.text("general.name") or keys.arch,
        vocab=parts.embedding(keys, tensors, sizes.hidden),
        hidden=sizes.hidden,
        context=sizes.context,
        layers=tuple(layers),
        final_norm=norm,
        head=Head(
            tied="output.weight" not in tensors,
            bias="output.bias" in tensors,
            scale=scales.logits,
            softcap=scales.logit_softcap,
        ),
        embedding_scale=scales.embedding,
        positions=LearnedPositions(sizes.context) if row.learned_positions else NoPositions(),
    )


def _attention(
    keys: Keys, tensors: TensorTable, row: GgufRow, sizes: _Sizes, norm: Norm, scales: parts.Scales
) -> list[Attention]:
    positions = parts.positions(keys, tensors, row, sizes.layers, sizes.k_dim, sizes.context)
    windows = parts.windows(keys, row, sizes.layers)
    qk_norm = norm if row.family.qk_norm else None
    out = []
    for i in range(sizes.layers):
        blk = f"blk.{i}."
        qkv = [f"{blk}attn_{x}.bias" for x in "qkv"]
        merged_bias = f"{blk}attn_qkv.bias" in tensors
        out.append(
            Attention(
                heads=sizes.heads[i],
                kv_heads=sizes.kv_heads[i],
                k_dim=sizes.k_dim,
                v_dim=sizes.v_dim,
                scale=scales.attention or row.scale(sizes.k_dim, sizes.hidden, sizes.heads[i], sizes.layers),
                positions=positions[i],
                window=windows[i],
                softcap=scales.attention_softcap,
                sinks=f"{blk}attn_sinks.weight" in tensors,
                q_norm=qk_norm,
                k_norm=qk_norm,
                qk_norm_span=row.family.qk_norm or "head",
                qkv_bias=merged_bias or parts.present(tensors, qkv, "attention biases"),
                out_bias=f"{blk}attn_output.bias" in tensors,
            )
        )
    return out
