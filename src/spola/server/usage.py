"""The ``usage`` of an answer: tokens as OpenAI counts them, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spola.engine.events import Summary
from spola.runtime.answer import Job

__all__ = ["timing", "usage"]


def usage(jobs: Sequence[Job], *, reasoning: int = 0, generated: bool = True) -> dict[str, Any]:
    """Of all prompts and choices; a prompt counts once. ``timing`` is there once everything has ended.

    ``generated`` False: nothing was to be generated, so nothing counts.
    """
    prompt = sum(len(job.prompt_ids) for job in jobs)
    completion = sum(job.completion_tokens for job in jobs) if generated else 0
    out: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(job.cached_tokens for job in jobs)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    summaries = [choice.summary for job in jobs for choice in job.choices]
    if all(summary is not None for summary in summaries):
        out["timing"] = timing([summary for summary in summaries if summary is not None])
    return out


def timing(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Seconds: in the queue, from there to the first token, from there to the last, and in all.

    Of several choices: the first beginning and the last end. ``drafted`` and ``accepted``: guesses of
    speculation; ``preemptions``: how often a choice gave its place away.
    """
    arrival = min(summary.arrival_s for summary in summaries)
    end = max(summary.finished_s for summary in summaries)
    begun = min((s.scheduled_s for s in summaries if s.scheduled_s is not None), default=end)
    first = min((s.first_token_s for s in summaries if s.first_token_s is not None), default=end)
    return {
        "queue_s": round(begun - arrival, 6),
        "prefill_s": round(first - begun, 6),
        "decode_s": round(end - first, 6),
        "total_s": round(end - arrival, 6),
        "drafted": sum(summary.n_drafted for summary in summaries),
        "accepted": sum(summary.n_accepted for summary in summaries),
        "preemptions": sum(summary.preemptions for summary in summaries),
    }
