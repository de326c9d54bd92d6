"""Landing: what a step's output does to its requests, and what they are told. Queues are the scheduler's.

Nearly always a request gains one token and goes on; that is written out (``_take_token``). Whatever is not so
simple is ``outcome.apply``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spola.core.step import Slice, SliceOutput, Step, StepOutput
from spola.engine.deadlines import expired
from spola.engine.events import Event
from spola.engine.hits import PrefixCache
from spola.engine.kv import KvSpace
from spola.engine.outcome import apply
from spola.engine.request import Request
from spola.engine.stats import Stats

__all__ = ["Landing"]


def _take_token(request: Request, piece: Slice, out: SliceOutput, now: float) -> bool:
    """Move ``request`` on if all that came is one token that does not end it; else False: nothing is done."""
    ids = out.ids
    if (
        len(ids) != 1
        or piece.n_head != 1
        or piece.n_drafts
        or out.accepted
        or out.error is not None
        or out.prompt_logprobs
        or piece.targets
        or request.guard is not None
        or request.aborted
        or request.expired
        or request.want != "sample"
    ):
        return False
    token, known = ids[0], request.known
    if token in request.eos_ids or token in request.stop_ids or len(known) + 1 >= request.limit:
        return False
    known.append(token)
    request.in_flight = False
    request.computed = computed = piece.start + len(piece.ids) // 4
    if computed > request.peak_computed:
        request.peak_computed = computed
    if request.drafts:
        request.drafts = ()
    request.proposals = 0
    last = request.last_token_s
    if last is None:
        request.first_token_s = now
    elif now - last > request.longest_gap_s:
        request.longest_gap_s = now - last
    request.last_token_s = now
    return True


class Landing:
    """``events`` gather until somebody takes them. ``finish`` ends a request and adds its last event;
    ``verified`` is told how many drafts a request had in a step and how many were accepted.
    """

    def __init__(
        self,
        kv: KvSpace,
        cache: PrefixCache,
        stats: Stats,
        *,
        requests: Mapping[int, Request],
        finish: Callable[[Request, Event, float], None],
        verified: Callable[[Request, int, int], None],
    ) -> None:
        self.events: list[Event] = []
        self._kv = kv
        self._cache = cache
        self._stats = stats
        self._requests = requests
        self._finish = finish
        self._verified = verified

    def land(self, step: Step, output: StepOutput, now: float) -> None:
        """Take in what ``step`` gave, which has as many outputs as slices."""
        plain = 0
        for piece, out in zip(step.slices, output.slices, strict=True):
            request = self._requests[piece.id]
            if not _take_token(request, piece, out, now):
                self._land(request, piece, out, now)
                continue
            plain += 1
            if request.computed >= request.next_full:
                self._cache.publish(request)
            if self._kv.windowed:
                self._kv.trim(request, request.computed)
            self.events.append(Event(request.id, request.choice, out.ids, out.logprobs))
        self._stats.output_tokens += plain

    def _land(self, request: Request, piece: Slice, out: SliceOutput, now: float) -> None:
        request.in_flight = False
        self._stats.decode_tokens += piece.n_drafts
        event = Event(request.id, request.choice)
        if request.aborted:
            event.finish_reason = "abort"
        elif request.expired:
            event = expired(request)
        elif out.error is not None:
            event.finish_reason, event.error = "error", out.error
        else:
            outcome = apply(request, piece, out)
            if outcome.reason != "error" and request.computed >= request.next_full:
                self._cache.publish(request)
            event.finish_reason, event.error, event.stop_id = outcome.reason, outcome.error, outcome.stop_id
            if outcome.reason != "error":
                self._count_drafts(request, piece.n_drafts, out.accepted)
                event.scores, event.vector, event.logits = out.scores, out.vector, out.logits
                event.prompt_logprobs = out.prompt_logprobs
            if outcome.kept:
                event.ids = out.ids[: outcome.kept]
                event.logprobs = None if out.logprobs is None else out.logprobs[: outcome.kept]
                self._stats.output_tokens += outcome.kept
                request.got_tokens(now)
        if event.finish_reason is not None:
            self._finish(request, event, now)
        else:
            self._kv.trim(request, request.computed)
            if event.ids or event.scores or event.vector or event.logits or event.prompt_logprobs:
                self.events.append(event)

    def _count_drafts(self, request: Request, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        request.drafted += drafted
        request.accepted += accepted
        self._stats.draft_runs += 1
        self._stats.draft_tokens += drafted
        self._stats.accepted_tokens += accepted
        self._verified(request, drafted, accepted)
