"""The roofline of a loaded or planned model: least seconds of its steps on a machine of given limits.

The bound is the slower of moving the bytes and doing the multiply-adds, each at the peak of the format that
the native kernels compute in (docs/numerics.md). Weights that fit into the processor's caches are read from
there at every step, so the bytes are moved at the rate measured for that many.
After Williams, Waterman, Patterson: Roofline (2009).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spola.core.dtype import BY_NAME
from spola.core.runner import KvGroup
from spola.runtime.limits import MachineLimits
from spola.spec.cost import (
    attention_flops,
    decode_bytes,
    ends_with_kv,
    kv_bytes_per_token,
    streamed_weight_bytes,
)
from spola.spec.decoder import DecoderSpec, MoeMlp
from spola.spec.manifest import TensorInfo, manifest

__all__ = ["Roofline", "activation_format", "macs_by_type"]


def activation_format(dtype: str, precise: bool) -> str:
    """What the native kernels turn activations into for weights of ``dtype``: f32, a8 or a16."""
    if BY_NAME[dtype].block == 1 or dtype == "F8_E4M3":
        return "f32"
    return "a16" if dtype == "Q8_0" or precise else "a8"


def macs_by_type(spec: DecoderSpec, dtypes: Mapping[str, str], rows: int, heads: int) -> dict[str, float]:
    """Multiply-adds of the linear layers by weight type, for ``rows`` rows of which ``heads`` get logits; the
    others end with their K and V of the last layer.
    """
    head = "embedding.weight" if spec.head.tied else "head.weight"
    total: dict[str, float] = {}
    for info in manifest(spec):
        dtype = dtypes.get(info.name)
        through = heads if ends_with_kv(spec, info.name) else rows
        times = heads if info.name == head else _times(spec, info) * through
        if dtype is not None and times:
            total[dtype] = total.get(dtype, 0.0) + math.prod(info.shape) * times
    return total


def _times(spec: DecoderSpec, info: TensorInfo) -> float:
    """How often a row goes through a tensor: of a stack of experts, the part that is used."""
    if info.role in ("linear", "heads", "router"):
        return 1.0
    if info.role == "experts":
        mlp = spec.layers[int(info.name.split(".")[1])].mlp
        assert isinstance(mlp, MoeMlp)
        return mlp.used / info.shape[0]
    return 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """``dtypes``: canonical tensor name -> DType name; ``groups``: the KV cache."""

    spec: DecoderSpec
    dtypes: Mapping[str, str]
    groups: Sequence[KvGroup]
    limits: MachineLimits
    precise: bool = False

    def prefill(self, rows: int, step_tokens: int) -> float:
        """Least seconds of a prompt of ``rows`` tokens, ``step_tokens`` in a step, and its first logits."""
        steps = -(-rows // step_tokens)
        moved = steps * streamed_weight_bytes(self.spec, self.dtypes, rows)
        moved += rows * kv_bytes_per_token(self.groups)
        attention = attention_flops(self.spec, rows, 0, 1)
        return max(moved / self.limits.read_of(moved), self.arithmetic(rows, 1, attention))

    def decode(self, contexts: Sequence[int]) -> float:
        """Least seconds of one decode step of requests at ``contexts`` positions."""
        moved = decode_bytes(self.spec, self.dtypes, self.groups, contexts)
        batch = len(contexts)
        attention = sum(attention_flops(self.spec, 1, context - 1) for context in contexts)
        return max(moved / self.limits.read_of(moved), self.arithmetic(batch, batch, attention))

    def arithmetic(self, rows: int, heads: int, attention_flops: float) -> float:
        """Seconds of the multiply-adds at the peak of the format that each matrix computes in."""
        seconds = attention_flops / 2 / self.limits.peak["f32"]
        for dtype, macs in macs_by_type(self.spec, self.dtypes, rows, heads).items():
            seconds += macs / self.limits.peak[activation_format(dtype, self.precise)]
        return seconds
