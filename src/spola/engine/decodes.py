"""Decodes: the rows of a step that go to requests one short of their known tokens, and drafts beside them.

The only rows that blocks may be missing for: then the worst-ranked request gives its blocks back. A step of
nothing else, as nearly all are, is written out as one loop: ``steady``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from spola.core.step import Slice
from spola.engine.kv import KvSpace
from spola.engine.limits import Limits, Shape
from spola.engine.plan import Plan
from spola.engine.request import Request, Status
from spola.engine.speculate import Speculator
from spola.engine.way import victim_for

__all__ = ["Decodes"]


def _slices(running: Sequence[Request], kv: KvSpace) -> tuple[Slice, ...] | None:
    """A one-row slice for each of ``running``, which are in flight then; None, and nothing done but blocks
    taken that are needed in any case, unless all can have one.
    """
    slices = []
    size = kv.block_size
    for request in running:
        known, computed = request.known, request.computed
        if (
            len(known) - computed != 1
            or request.in_flight
            or request.want != "sample"
            or request.drafts
            or request.peak_computed > computed
            or request.params.prompt_logprobs is not None
            or not (computed % size or kv.extend(request, computed + 1))  # else the block before has room
        ):
            return None
        tables: tuple[bytes, ...] = (request.tables[0].ids.tobytes(),)
        if len(request.tables) > 1:
            tables = tuple([table.ids.tobytes() for table in request.tables])
        slices.append(Slice(request.id, computed, known[computed:].tobytes(), tables, 1))
    for request in running:
        request.in_flight = True
    return tuple(slices)


class Decodes:
    """Works on the scheduler's own queues; ``preempt`` takes a running request's place and blocks."""

    def __init__(
        self,
        limits: Limits,
        shape: Shape,
        kv: KvSpace,
        speculator: Speculator | None,
        *,
        waiting: Sequence[Request],
        running: Sequence[Request],
        preempt: Callable[[Request], None],
    ) -> None:
        self._shape = shape
        self._kv = kv
        self.speculator = speculator
        self._continuous = limits.batching == "continuous"
        self._waiting = waiting
        self._running = running
        self._preempt = preempt

    def drafting(self) -> list[tuple[Request, int]]:
        """As ``Scheduler.drafting``."""
        ready = [r for r in self._running if r.decoding and not r.in_flight]
        if self.speculator is None or self._shape.context is not None or not ready:
            return []
        rows = len(ready) + self._asking()
        ready = [r for r in ready if r.want == "sample"]
        room = max(0, self._shape.rows - rows) if self._shape.speculation else 0
        most = [min(room, self._shape.chunk - 1, r.limit - len(r.known) - 1) for r in ready]
        lengths = self.speculator.lengths(ready, most, room=room, rows=rows)
        return [(r, n) for r, n in zip(ready, lengths, strict=True) if n > 0]

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """Of the drafts of a step that came back."""
        if self.speculator is not None:
            self.speculator.verified(request, drafted, accepted)

    def steady(self) -> tuple[Slice, ...] | None:
        """The slices of a step of decodes alone; None: the step has to be planned."""
        shape = self._shape
        if self._waiting or self.speculator is not None or not shape.mixed or shape.context is not None:
            return None
        return _slices(self._running, self._kv) if self._running else None

    def fill(self, plan: Plan) -> None:
        """One row for each request that is ready, best rank first, and the drafts that pay."""
        ready = [r for r in self._running if r.decoding and not r.in_flight]
        drafting = self.speculator is not None or any(r.drafts for r in ready)
        asking = self._asking() if drafting and ready else 0
        for left, request in zip(range(len(ready), 0, -1), ready, strict=True):
            if request.status is not Status.RUNNING or not plan.rows(request):
                continue
            drafts = self._drafts(request, plan, left, asking) if drafting else 0
            # Speculation takes no block that this or a later decode may need: nobody is preempted for it.
            if drafts and not self._kv.extend(request, request.computed + 1 + drafts, spare=left - 1):
                drafts = 0
            if drafts or self._make_room(request, plan):
                plan.add(request, 1, drafts)

    def _drafts(self, request: Request, plan: Plan, left: int, asking: int) -> int:
        """How many drafts ``request`` gets; ``left`` decodes and ``asking`` other rows come first."""
        room = plan.draft_room(request, left + asking)
        if room and not request.drafts and self.speculator is not None and request.want == "sample":
            request.drafts = self.speculator.drafts(
                request,
                room=room,
                rows=plan.chosen + left + asking,
                tokens=len(plan.entries) + left - 1,
            )
        return min(len(request.drafts), room)

    def _asking(self) -> int:
        """Rows that prompts can use in this step, if it may hold them: drafts never take these."""
        if not self._shape.mixed:
            return 0
        running = (r for r in self._running if not r.in_flight and not r.decoding)
        admits = self._continuous and len(self._running) < self._shape.seqs
        most = self._shape.rows
        total = 0
        for request in chain(running, self._waiting if admits else ()):
            total += min(request.missing, self._shape.chunk)
            if total >= most:
                return most
        return total

    def _make_room(self, request: Request, plan: Plan) -> bool:
        """Blocks for one more row, at the cost of worse-ranked requests, at last of ``request`` itself."""
        while not self._kv.extend(request, request.computed + 1):
            victim = victim_for(request, self._running)
            if victim is None:
                return False
            self._preempt(victim)
            plan.preempted = True
            plan.victims.add(victim.id)
            if victim is request:
                return False
        return True
