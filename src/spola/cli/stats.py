"""The line of figures after an answer, and the same as data.

The bound is the memory bandwidth measured on this machine over the bytes one token needs: every weight once
and the KV cache so far. It is looked up or measured only after the answer is out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spola.runtime.answer import Job
from spola.runtime.bandwidth import read_bandwidth
from spola.runtime.machine import describe_bytes
from spola.runtime.outputs import timing_of
from spola.runtime.service import Service
from spola.spec.cost import decode_bytes

__all__ = ["Figures", "figures", "result_json", "stats_line"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens, and seconds or tokens per second; None where one token is too few to tell."""

    prompt: int
    completion: int
    ttft_s: float | None
    tpot_s: float | None
    latency_s: float | None
    prefill_tok_s: float | None
    decode_tok_s: float | None
    drafted: int = 0
    accepted: int = 0


def figures(job: Job) -> Figures:
    """Times of the first choice of a finished ``job``."""
    choice = job.choices[0]
    tokens = len(choice.token_ids)
    timing = timing_of(choice.summary, tokens)
    ttft = timing.ttft_s if timing else None
    tpot = timing.tpot_s if timing else None
    return Figures(
        prompt=len(job.prompt_ids),
        completion=tokens,
        ttft_s=ttft,
        tpot_s=tpot,
        latency_s=timing.latency_s if timing else None,
        prefill_tok_s=len(job.prompt_ids) / ttft if ttft and ttft > 0 else None,
        decode_tok_s=1 / tpot if tpot and tpot > 0 else None,
        drafted=choice.summary.n_drafted if choice.summary else 0,
        accepted=choice.summary.n_accepted if choice.summary else 0,
    )


def result_json(job: Job) -> dict[str, Any]:
    """The document of ``spola run --json``."""
    choice, found = job.choices[0], figures(job)
    drafts = {"drafts": {"verified": found.drafted, "accepted": found.accepted}} if found.drafted else {}
    return {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "usage": {
            "prompt_tokens": found.prompt,
            "completion_tokens": found.completion,
            "cached_tokens": job.cached_tokens,
        },
        "timing": {
            "ttft_s": found.ttft_s,
            "tpot_s": found.tpot_s,
            "latency_s": found.latency_s,
            "prefill_tok_s": found.prefill_tok_s,
            "decode_tok_s": found.decode_tok_s,
        },
        **drafts,
    }


def stats_line(service: Service, job: Job) -> str:
    """One line: tokens, time to the first, decode speed, and its fraction of the memory bound."""
    found = figures(job)
    parts = [f"{found.prompt} prompt + {found.completion} generated tokens"]
    if found.ttft_s is not None:
        parts.append(f"first token {found.ttft_s:.2f} s")
    if found.decode_tok_s is not None:
        parts.append(f"decode {found.decode_tok_s:.1f} tok/s{_bound(service, found)}")
    if found.drafted:
        parts.append(f"{found.accepted} of {found.drafted} drafts accepted")
    return "[" + ", ".join(parts) + "]"


def _bound(service: Service, found: Figures) -> str:
    config = service.config
    if config.device != "cpu" or found.decode_tok_s is None:
        return ""  # time is not real there, or the memory is not this machine's
    if found.accepted:
        return ""  # the bound is of one token per pass over the weights
    context = found.prompt + found.completion // 2
    size = decode_bytes(service.spec, service.dtypes, config.kv_groups, [context])
    size += config.packed_bytes - config.weights_bytes
    reached = size * found.decode_tok_s
    rate = read_bandwidth(service.machine, config.threads, config.packed_bytes, reached)
    if rate is None:
        return ", memory bound not measured"
    bound = rate / size
    share = found.decode_tok_s / bound
    return (
        f" = {share:.0%} of the memory bound of {bound:.0f} "
        f"({describe_bytes(size)} per token at {describe_bytes(rate)}/s"
        f"{'; the weights sit in the cache of the processor' if share > 1 else ''})"
    )
