"""Which storage type each tensor takes when weights are quantized: by role, and by what its rows allow.

Follows llama.cpp's rules for plain types: vectors, routers and tables of positions stay F32; the head (or the
embedding that is also the head) of a 4-bit model is Q6_K; rows that are no whole blocks take the next type
that fits. Converts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spola.core.dtype import BY_NAME
from spola.core.errors import ConfigError, ModelError
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import Role, TensorInfo, manifest

__all__ = ["FLOATS", "WEIGHT_TYPES", "fallback_notes", "planned_types", "target_type", "weight_type"]

# What a person writes -> DType name.
WEIGHT_TYPES = {name.lower(): name for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")}
FLOATS = ("F32", "F16", "BF16")
_QUANTIZED: tuple[Role, ...] = ("embedding", "linear", "heads", "experts", "head")
_SMALLER_BLOCK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


def weight_type(text: str, name: str = "weights") -> str:
    """The DType name that a person means by ``text``. Raises ConfigError listing the types."""
    found = WEIGHT_TYPES.get(text.lower())
    if found is None:
        raise ConfigError(f"{name}: {text[:40]!r} is none of {', '.join(WEIGHT_TYPES)}")
    return found


def target_type(role: Role, columns: int, wanted: str, *, is_head: bool) -> str:
    """The DType name for a tensor with rows of ``columns`` values in a model of type ``wanted``.

    ``is_head``: logits are made with it.
    """
    if role not in _QUANTIZED:
        return "F32"
    found = wanted
    if is_head and wanted.startswith("Q4"):
        found = "Q6_K"
    if columns % BY_NAME[found].block:
        found = _SMALLER_BLOCK.get(found, found)
    return "F16" if columns % BY_NAME[found].block else found


def planned_types(spec: DecoderSpec, stored: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Canonical name -> DType name for each tensor of ``spec`` that is to be stored as another type.

    ``stored``: what the file holds. Tensors that are no matrices are left as they are: backends hold them in
    f32. Raises ModelError naming a tensor that is quantized already.
    """
    out = {}
    for info in manifest(spec):
        if info.name not in stored or info.role not in _QUANTIZED:
            continue
        target = target_type(info.role, info.shape[-1], wanted, is_head=_is_head(spec, info))
        if target == stored[info.name]:
            continue
        if stored[info.name] not in FLOATS:
            raise ModelError(
                f"tensor {info.name} is {stored[info.name]} already; quantize a model in F32, F16 or BF16"
            )
        out[info.name] = target
    return out


def fallback_notes(wanted: str, tensors: Iterable[tuple[int, str, bool]]) -> list[str]:
    """A line for each kind of tensor that does not take ``wanted``: (columns, DType name, whether
    the head).
    """
    seen = Counter((columns, name, head) for columns, name, head in tensors if name != wanted)
    return [
        f"{name} instead of {wanted} for the head"
        if head
        else f"{name} instead of {wanted} for {n} tensor{'s' if n > 1 else ''} with rows of {columns}"
        for (columns, name, head), n in sorted(seen.items())
    ]


def _is_head(spec: DecoderSpec, info: TensorInfo) -> bool:
    return info.role == ("embedding" if spec.head.tied else "head")
