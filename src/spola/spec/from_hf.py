"""The ``config.json`` of a Hugging Face folder and its tensors' names -> DecoderSpec, and where tensors lie.

Every key that changes the computation is obeyed or refused by name; defaults are the library's own. Reads no
file and runs no code that a model brings along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spola.core.errors import ModelError
from spola.spec import hf_parts as parts
from spola.spec.decoder import Attention, DecoderSpec, Head, LatentAttention, LearnedPositions, NoPositions
from spola.spec.hf_config import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, HfConfig, show
from spola.spec.hf_deepseek import latent_attention
from spola.spec.hf_rows import ROWS, HfRow
from spola.spec.refused import why_refused
from spola.spec.sources import Source, TensorTable, resolve, unused

__all__ = ["SUPPORTED", "HfModel", "from_hf", "refuse_quantized", "spec_of_config"]

SUPPORTED = tuple(sorted(ROWS))

# Models that hold one of ours as their text part: model type -> that part's type and key.
_WRAPPED = {"gemma3": ("gemma3_text", "text_config"), "mistral3": ("mistral", "text_config")}
_PREFIXES = ("", "language_model.", "model.language_model.")
# Buffers that old checkpoints carry and that follow from the configuration.
_BUFFERS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias")


@dataclass(frozen=True, slots=True)
class HfModel:
    """``sources``: where in the folder's files each tensor lies, by canonical name."""

    spec: DecoderSpec
    sources: Mapping[str, Source]
    warnings: tuple[str, ...]


def from_hf(
    values: Mapping[str, Any], tensors: TensorTable, name: str = "", *, tied: bool | None = None
) -> HfModel:
    """The model that ``values`` (a parsed ``config.json``) describe. ``tied`` overrides what they say of it.
    Of a model that wraps this one the files decide: its two configurations contradict each other in practice.

    ``tensors``: name in the files -> DType name and shape. Raises ModelError naming the key or tensor at
    fault, or the model type with the supported ones.
    """
    row, config, spec, warnings = _understood(values, name)
    wrapped = values.get("model_type") in _WRAPPED
    prefix = _prefix(row, tensors)
    if tied is None and wrapped:
        tied = f"{prefix}lm_head.weight" not in tensors
    if tied is not None:
        spec = replace(spec, head=replace(spec.head, tied=tied))
    parts.refuse_other(config)
    sources = resolve(spec, row.names.names(prefix), tensors)
    dead = {"lm_head.weight"} if spec.head.tied else set()
    further = _further_layers(config, len(spec.layers))

    def harmless(tensor: str) -> bool:
        other_part = wrapped and not tensor.startswith(prefix)
        tensor = tensor.removeprefix(prefix)
        return other_part or tensor.endswith(_BUFFERS) or tensor in dead or tensor.startswith(further)

    warnings += unused(sources, tensors, harmless)
    return HfModel(spec, sources, tuple(warnings + config.unread(parts.HARMLESS)))


def spec_of_config(values: Mapping[str, Any], name: str = "") -> DecoderSpec:
    """The model alone, from a ``config.json`` whose weights are not here. Raises as ``from_hf``."""
    _, config, spec, _ = _understood(values, name)
    parts.refuse_other(config)
    return spec


def _understood(values: Mapping[str, Any], name: str) -> tuple[HfRow, HfConfig, DecoderSpec, list[str]]:
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise ModelError("config.json: model_type is missing or not a string; this is no model folder")
    warnings: list[str] = []
    if kind in _WRAPPED:
        kind, key = _WRAPPED[kind]
        values, warnings = _text_part(values, kind, key)
    row = ROWS.get(kind)
    if row is None:
        names = ", ".join(SUPPORTED)
        why = why_refused(kind)
        raise ModelError(
            f"config.json: model_type {show(kind)} is not supported{why}; supported are: {names}"
        )
    refused = row.refused(values)
    if refused is not None:
        raise ModelError(f"config.json: this {kind} model is not supported: {refused}")
    config = HfConfig(values, row.defaults, row.aliases)
    refuse_quantized(values)
    return row, config, _read(config, row, kind, name or kind), warnings


def refuse_quantized(values: Mapping[str, Any]) -> None:
    """Raise ModelError naming the method of a quantized folder, unless it is one of FP8 weights."""
    for key in ("quantization_config", "compression_config"):
        found = values.get(key)
        if found:
            quantization = found if isinstance(found, Mapping) else {}
            method = quantization.get("quant_method", quantization.get("quant_algo", "unknown"))
            if _is_fp8(method, quantization):
                continue
            raise ModelError(
                f"config.json: quant_method {show(method)} is not supported; "
                "use the folder of the unquantized model, or a GGUF file"
            )


def _is_fp8(method: Any, quantization: Mapping[str, Any]) -> bool:
    """Whether weights are E4M3 codes with scales, as ``formats.fp8`` reads them."""
    match method:
        case "fp8" | "fbgemm_fp8":
            return bool(quantization.get("fmt", "e4m3") == "e4m3")
        case "compressed-tensors":
            return bool(quantization.get("format") == "float-quantized")
        case "modelopt":
            return bool(quantization.get("quant_algo") == "FP8")
    return False


def _text_part(values: Mapping[str, Any], kind: str, key: str) -> tuple[Mapping[str, Any], list[str]]:
    part = values.get(key)
    if not isinstance(part, Mapping):
        raise ModelError(f"config.json: {key} is missing or no object")
    if part.get("model_type", kind) != kind:
        raise ModelError(f"config.json: {key}.model_type is {show(part['model_type'])}, expected {kind}")
    kept = dict(part)
    for outer in ("tie_word_embeddings", "quantization_config"):
        if outer in values:
            kept.setdefault(outer, values[outer])
    return kept, ["only the text part of this model is loaded; images are not supported"]


def _further_layers(config: HfConfig, n: int) -> tuple[str, ...]:
    """Where the layers lie that predict more tokens than the next one; this model is whole without them."""
    more = config.optional_integer("num_nextn_predict_layers", 0, 64) or 0
    return tuple(f"model.layers.{n + i}." for i in range(more))


def _prefix(row: HfRow, tensors: Iterable[str]) -> str:
    """What stands before the names of this checkpoint: nothing, or what a wrapping model puts there."""
    names = set(tensors)
    embeddings = row.names.model.get("embedding", ("model.embed_tokens",))
    for prefix in _PREFIXES:
        if any(f"{prefix}{name}.weight" in names for name in embeddings):
            return prefix
    return ""


def _read(config: HfConfig, row: HfRow, kind: str, name: str) -> DecoderSpec:
    hidden = config.integer("hidden_size", 1, MAX_WIDTH)
    n = config.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    context = config.integer("max_position_embeddings", 1, MAX_CONTEXT)
    if row.latent:
        latent = latent_attention(config, row, hidden, heads, context)
        return _of_latent(config, row, latent, _Top(kind, name, hidden, n, context))
    kv_heads = parts.kv_heads(config, row, heads)
    head_dim = config.optional_integer("head_dim", 1, MAX_WIDTH)
    if head_dim is None:
        if hidden % heads:
            raise ModelError(f"config.json: {heads} attention heads do not divide hidden_size {hidden}")
        head_dim = hidden // heads
    norm = row.family.make_norm(config.number(row.eps, 0.0, 1.0), row.norm_offset)
    qk_norm = norm if row.family.qk_norm else None
    windows = parts.windows(config, row, n)
    positions = parts.positions(config, row, windows, head_dim, context)
    mlps = parts.mlps(config, row, n, hidden)
    scales = parts.scales(config, row, head_dim, hidden)
    place = parts.placement(config, row)
    layers = []
    for i in range(n):
        attention = Attention(
            heads=heads,
            kv_heads=kv_heads,
            k_dim=head_dim,
            v_dim=head_dim,
            scale=scales.attention / ((i + 1) if scales.by_layer else 1),
            positions=positions[i],
            window=windows[i],
            softcap=scales.attention_softcap,
            q_norm=qk_norm,
            k_norm=qk_norm,
            qk_norm_span=row.family.qk_norm or "head",
            qkv_bias=parts.said(config, row.qkv_bias),
            out_bias=parts.said(config, row.out_bias),
        )
        layers.append(
            row.family.layer(attention, mlps[i], norm, placement=place, residual_scale=scales.residual)
        )
    return DecoderSpec(
        arch=kind,
        name=name,
        vocab=config.integer("vocab_size", 1, MAX_WIDTH),
        hidden=hidden,
        context=context,
        layers=tuple(layers),
        final_norm=norm,
        head=Head(
            tied=config.flag("tie_word_embeddings", row.tied),
            bias=row.head_bias,
            scale=scales.logits,
            softcap=scales.logit_softcap,
        ),
        embedding_scale=scales.embedding,
        positions=LearnedPositions(context) if row.rope == "none" else NoPositions(),
    )


@dataclass(frozen=True, slots=True)
class _Top:
    kind: str
    name: str
    hidden: int
    layers: int
    context: int


def _of_latent(config: HfConfig, row: HfRow, attention: LatentAttention, top: _Top) -> DecoderSpec:
    """A model whose layers all have ``attention``."""
    norm = row.family.make_norm(config.number(row.eps, 0.0, 1.0))
    mlps = parts.mlps(config, row, top.layers, top.hidden)
    scales = parts.scales(config, row, attention.q_dim, top.hidden)
    return DecoderSpec(
        arch=top.kind,
        name=top.name,
        vocab=config.integer("vocab_size", 1, MAX_WIDTH),
        hidden=top.hidden,
        context=top.context,
        layers=tuple(row.family.layer(attention, mlp, norm, residual_scale=scales.residual) for mlp in mlps),
        final_norm=norm,
        head=Head(tied=config.flag("tie_word_embeddings", row.tied), scale=scales.logits),
        embedding_scale=scales.embedding,
    )
