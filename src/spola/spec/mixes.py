"""Which storage type each tensor has in a GGUF file of a named mix, as llama.cpp's quantizer chooses it.

For cost and size before a file is here: Q4_K_M is by far the most pulled. The rule is that of
``llama_tensor_get_type`` in llama.cpp's ``llama-quant.cpp``. Q8_0 is in all matrices. Converts nothing.
"""

from __future__ import annotations

import re

from spola.core.dtype import BY_NAME
from spola.core.errors import ConfigError
from spola.spec.decoder import DecoderSpec
from spola.spec.manifest import TensorInfo, manifest

__all__ = ["MIXES", "mix_types"]

MIXES = ("Q4_K_M", "Q8_0")
_MATRICES = ("embedding", "linear", "heads", "experts", "head")
_LAYER = re.compile(r"layers\.(\d+)\.")
# For rows that are no whole blocks of 256.
_SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Phi-3 keeps q, k and v in one tensor, which takes one type.
_FUSED_QKV = ("phi3",)


def mix_types(spec: DecoderSpec, mix: str) -> dict[str, str]:
    """Canonical tensor name -> DType name of a model of ``spec`` in ``mix``. Raises ConfigError."""
    if mix not in MIXES:
        raise ConfigError(f"the mix {mix} is not known; there are {', '.join(MIXES)}")
    return {info.name: _type(info, spec, mix) for info in manifest(spec) if info.required}


def _type(info: TensorInfo, spec: DecoderSpec, mix: str) -> str:
    if info.role not in _MATRICES:
        return "F32"
    kind = "Q8_0" if mix == "Q8_0" else _q4_k_m(info, spec)
    if info.shape[-1] % BY_NAME[kind].block:
        kind = _SMALLER.get(kind, kind)
    return kind if info.shape[-1] % BY_NAME[kind].block == 0 else "F16"


def _q4_k_m(info: TensorInfo, spec: DecoderSpec) -> str:
    if info.role == ("embedding" if spec.head.tied else "head"):
        return "Q6_K"
    match = _LAYER.match(info.name)
    if match is None:
        return "Q4_K"
    if spec.arch in _FUSED_QKV and info.name.endswith(("attention.q.weight", "attention.k.weight")):
        return "Q5_K"
    if spec.arch in _FUSED_QKV and info.name.endswith("attention.v.weight"):
        return "Q5_K"
    better = info.name.endswith(("attention.v.weight", "mlp.down.weight", "mlp.experts.down.weight"))
    return "Q6_K" if better and _more_bits(int(match[1]), len(spec.layers)) else "Q4_K"


def _more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between them."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
