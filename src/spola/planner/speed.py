"""How long a step will take on this machine, from rates that were measured before the model was ever loaded.

A linear layer reads its weights while it computes; what is not hidden adds as the root of the sum of squares.
The constants are what the decoder loses to its kernels alone, and what the operations between matrices cost.
They were fitted on a qwen2-0.5b shape (``tools/experiments/predict.py`` shows what they are worth on others)
and are stated in multiply-adds at the machine's f32 peak, so that they move with the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spola.core.runner import KvGroup
from spola.core.step import Step
from spola.planner.trial import Slices, Trial
from spola.runtime.limits import KernelRates, MachineLimits
from spola.runtime.roofline import activation_format, macs_by_type
from spola.spec.cost import attention_flops, kv_read_bytes, streamed_weight_bytes
from spola.spec.decoder import DecoderSpec, DenseMlp, LatentAttention, MoeMlp

__all__ = ["Speed"]

DECODER = 0.78  # of the kernels' own speed, at chunks of a prompt
ATTENTION = 0.29  # of the f32 peak
FLOAT_MACS = 68.0  # multiply-adds' time for a float that is normed, quantized, rotated or multiplied
LAYER_S = 8e-6  # of a layer's small operations and meetings, whatever they work on
WAKE_S = 8e-5  # of waking the workers for a step
LOGIT_MACS = 24.0  # for a logit that is looked at by the sampler, one thread a row
SMALL = 8  # rows up to which the kernel reads each weight once


@dataclass(frozen=True, slots=True)
class Speed:
    """``rates`` of the weight types; ``overhead_s`` and ``request_s``: what Python adds to a step, and to
    each request in it. Where there is a ``trial`` of the model, its figures count instead of all these.
    """

    spec: DecoderSpec
    dtypes: Mapping[str, str]
    groups: Sequence[KvGroup]
    limits: MachineLimits
    rates: KernelRates
    threads: int
    overhead_s: float
    request_s: float
    precise: bool = False
    trial: Trial | None = None

    def of(self, dtypes: Mapping[str, str], groups: Sequence[KvGroup]) -> Speed:
        """The same model with other weights or another cache, which were not tried."""
        same = (dtypes, groups) == (self.dtypes, self.groups)
        return replace(self, dtypes=dtypes, groups=groups, trial=self.trial if same else None)

    def step(self, step: Step) -> float:
        """Seconds of a planned step."""
        return self.seconds([(piece.start, piece.n, piece.n_head) for piece in step.slices])

    def seconds(self, slices: Slices) -> float:
        """Seconds of a step of slices (first position, rows, rows with logits)."""
        rows = sum(n for _, n, _ in slices)
        if not rows:
            return self.overhead_s
        if self.trial is not None:
            return self.trial.seconds(self.spec, slices)
        heads = sum(h for _, _, h in slices)
        total = self.overhead_s + WAKE_S + self.request_s * len(slices) + LAYER_S * len(self.spec.layers)
        total += self._linear(rows, heads) + self._attention(slices)
        peak = self.limits.peak["f32"]
        total += FLOAT_MACS * rows * self._floats() / peak
        return total + LOGIT_MACS * self.spec.vocab * -(-heads // self.threads) * self.threads / peak

    def prefill(self, tokens: int, step_tokens: int, start: int = 0) -> float:
        """Seconds to the first token of a prompt that is alone."""
        total, at = 0.0, start
        while at < start + tokens:
            n = min(step_tokens, start + tokens - at)
            total += self.seconds([(at, n, int(at + n == start + tokens))])
            at += n
        return total

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a step in which ``batch`` requests at ``context`` positions get a token each."""
        return self.seconds([(context - 1, 1, 1)] * batch)

    def _linear(self, rows: int, heads: int) -> float:
        moved = streamed_weight_bytes(self.spec, self.dtypes, rows)
        computing = 0.0
        for dtype, macs in macs_by_type(self.spec, self.dtypes, rows, heads).items():
            computing += macs / (self.threads * self._rate(dtype, rows))
        return math.hypot(moved / self.limits.read_of(moved), computing)

    def _rate(self, dtype: str, rows: int) -> float:
        """Multiply-adds per second of a thread, in a step of ``rows`` rows."""
        known = self.rates.get(dtype)
        if not known:
            return self.limits.peak[activation_format(dtype, self.precise)] / self.threads / 2
        small, large = known[min(known)], known[max(known)] * DECODER
        if rows <= SMALL:
            return small
        part = min(1.0, math.log(rows / SMALL) / math.log(max(known) / SMALL))
        return small + (large - small) * part

    def _attention(self, slices: Slices) -> float:
        read = flops = 0.0
        for start, n, heads in slices:
            read += kv_read_bytes(self.groups, start + n)
            flops += attention_flops(self.spec, n, start, heads)
        return math.hypot(read / self.limits.read, flops / 2 / (ATTENTION * self.limits.peak["f32"]))

    def _floats(self) -> int:
        """Floats of a row that the operations between matrices go through."""
        total = 0
        for layer in self.spec.layers:
            a, m = layer.attention, layer.mlp
            total += 2 * self.spec.hidden
            if isinstance(a, LatentAttention):
                total += a.heads * (a.q_dim + a.v_dim)
                a = a.absorbed
            total += a.heads * a.v_dim + a.heads * a.k_dim + a.kv_heads * (a.k_dim + a.v_dim)
            if isinstance(m, DenseMlp):
                total += m.ff
            elif isinstance(m, MoeMlp):
                total += m.used * (m.expert.ff + self.spec.hidden)
        return total
