"""Outcome: what a SliceOutput does to its request: tokens known, positions computed, reason to stop.

Tokens are taken one by one, so that a stop inside a run of accepted drafts cuts the rest off. The text
behind the ids is a Guard's business; queues and blocks are the scheduler's.
"""

from __future__ import annotations

import msgspec

from spola.core.step import Slice, SliceOutput
from spola.engine.events import FinishReason
from spola.engine.request import Request

__all__ = ["Outcome", "apply"]


class Outcome(msgspec.Struct):
    """``kept`` new tokens count; ``reason`` ends the request."""

    kept: int = 0
    reason: FinishReason | None = None
    stop_id: int | None = None
    error: str | None = None


def apply(request: Request, piece: Slice, out: SliceOutput) -> Outcome:
    """Move ``request`` on by one slice that was computed without error."""
    fault = _fault(request, piece, out)
    if fault is not None:
        return Outcome(reason="error", error=f"the backend gave {fault}")
    request.computed = piece.start + piece.n - piece.n_drafts + out.accepted
    request.peak_computed = max(request.peak_computed, request.computed)
    request.drafts, request.proposals = (), 0
    if request.want == "sample":
        if piece.targets:
            request.head_from = piece.start + piece.n - piece.n_samples
        return _take(request, out.ids)
    if piece.n_head:
        request.head_from = piece.start + piece.n  # given: not again after a preemption
    return Outcome(reason="stop" if request.missing == 0 else None)


def _fault(request: Request, piece: Slice, out: SliceOutput) -> str | None:
    """What is wrong with the shape of ``out``, or None."""
    if (
        out.accepted == 0
        and len(out.ids) == piece.n_head == 1
        and request.want == "sample"
        and not (piece.targets or out.prompt_logprobs)
    ):
        return None  # a decode, as nearly always
    if not 0 <= out.accepted <= piece.n_drafts:
        return f"{out.accepted} accepted drafts of {piece.n_drafts}"
    sampled = request.want == "sample"
    wanted = out.accepted + 1 if sampled and piece.n_samples else 0
    if len(out.ids) != wanted:
        return f"{len(out.ids)} tokens where {wanted} were due"
    if piece.targets or out.prompt_logprobs:
        asked = len(piece.targets) // 4 if sampled else 0
        if len(out.prompt_logprobs or ()) != asked:
            return f"{len(out.prompt_logprobs or ())} prompt log-probabilities where {asked} were due"
    if sampled:
        return None
    if request.want == "score" and len(out.scores or ()) != piece.n_head:
        return f"{len(out.scores or ())} scores where {piece.n_head} were due"
    if request.want == "logits" and piece.n_head and not out.logits:
        return "no logits"
    if request.want in ("embed_last", "embed_mean") and request.missing == piece.n and not out.vector:
        return "no vector"
    return None


def _take(request: Request, ids: tuple[int, ...]) -> Outcome:
    for kept, token in enumerate(ids, start=1):
        request.known.append(token)
        ends = token in request.eos_ids or token in request.stop_ids
        keep = True
        stopped = ends
        if request.guard is not None:
            try:
                answer = request.guard.accept((token,))
            except Exception as error:  # a guard's fault is its request's, never the step's
                return Outcome(kept, "error", error=f"the stop or grammar matcher failed: {error}")
            if answer is not None and not ends:
                stopped, keep = True, answer > 0
        if not keep:
            request.known.pop()
            return Outcome(kept - 1, "stop")
        if stopped:
            return Outcome(kept, "stop", stop_id=token if ends else None)
        if len(request.known) >= request.limit:
            return Outcome(kept, "length")
    return Outcome(len(ids))
