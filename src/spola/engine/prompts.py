"""Prompts: the rows of a step that go to prompts being computed, and to new ones.

Takes waiting requests into the running ones; whose turn it is to wait is ``admission``'s business.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

from spola.engine.admission import Admission, Door
from spola.engine.fair import Order
from spola.engine.hits import PrefixCache
from spola.engine.kv import Hit, KvSpace
from spola.engine.limits import Limits, Shape
from spola.engine.plan import Plan
from spola.engine.request import Rank, Request, Status
from spola.engine.stats import Stats

__all__ = ["Prompts"]


def _rank(request: Request) -> Rank:
    return request.rank


class Prompts:
    """Works on the scheduler's own queues. ``spare[g]`` blocks stay free at admission while others run."""

    def __init__(
        self,
        limits: Limits,
        shape: Shape,
        kv: KvSpace,
        cache: PrefixCache,
        order: Order,
        stats: Stats,
        *,
        waiting: list[Request],
        running: list[Request],
        requests: Mapping[int, Request],
        spare: Sequence[int],
    ) -> None:
        self._admission = Admission(limits, shape.seqs, cache)
        self._shape = shape
        self._kv = kv
        self._cache = cache
        self._order = order
        self._stats = stats
        self._waiting = waiting
        self._running = running
        self._requests = requests
        self._spare = tuple(spare)
        self._contiguous = limits.reservation == "contiguous"
        self._best_next = True  # where chunks are fixed: the best-ranked prompt, not the shortest

    def due(self, now: float) -> float:
        """When an empty engine may begin with those that wait: ``now``, or later for a batch not yet full."""
        return self._admission.due(self._waiting, now)

    def held_back(self, request: Request) -> bool:
        """Whether a waiting ``request`` may not begin as long as others of its key run."""
        return self._admission.seated(request, self._running)

    def fill(self, plan: Plan, now: float) -> None:
        """Rows of prompts being computed and of new ones.

        While others wait, none has more than half of the rows: the best rank has its half, the shortest ones
        come next, and what nobody else needs goes round again. Where chunks are fixed the two take turns.
        """
        prompts = [r for r in self._running if not r.in_flight and not r.decoding]
        if not prompts and not self._waiting:
            return  # as in most steps
        waiting = self._waiting[:1] if plan.victims else self._waiting  # the one for whom others gave way
        door = self._admission.open(waiting, self._running, self._requests, now)
        if plan.preempted:
            door.places = 0
        first, running, half = len(plan.entries), len(self._running), None
        if len(prompts) + len(waiting) > 1:
            half = (plan.prompt_room(prompts[0].computed if prompts else 0) + 1) // 2
        if prompts and (self._shape.fixed_chunk is None or self._best_next):
            self._advance(plan, prompts.pop(0), half)
        prompts.sort(key=lambda r: r.missing)
        while True:
            new = door.peek()
            if new is not None and (not prompts or new[0].goal - new[1].tokens < prompts[0].missing):
                self._begin(*new, door, plan, half, now)
            elif prompts:
                self._advance(plan, prompts.pop(0), half)
                door.look_again()
            else:
                break
        self._admission.close(door, len(self._running) - running)
        for index in range(first, len(plan.entries)):
            if plan.grow(index):
                self._extend(*plan.entries[index][:2])
        self._best_next ^= len(plan.entries) > first

    def _advance(self, plan: Plan, request: Request, most: int | None) -> None:
        rows = plan.rows(request, most)
        if rows:
            self._extend(request, rows)
            plan.add(request, rows)

    def _begin(
        self, request: Request, hit: Hit, door: Door, plan: Plan, most: int | None, now: float
    ) -> None:
        """Admit a waiting ``request``, with a slice in this step, if there are rows and blocks for it."""
        request.computed = hit.tokens
        rows = plan.rows(request, most)
        if not rows or not self._reserve(request, hit):
            request.computed = 0
            if rows:
                door.refused()
            else:
                door.places = 0
            return
        door.admitted()
        self._waiting.remove(request)
        request.status = Status.RUNNING
        request.passed = 0
        insort(self._running, request, key=_rank)
        self._order.begun(request)
        if request.scheduled_s is None:
            request.scheduled_s, request.n_cached = now, hit.tokens
        if self._cache.reads(request):
            self._stats.queried_tokens += request.goal
        self._stats.cached_tokens += hit.tokens
        self._extend(request, rows)
        plan.add(request, rows)

    def _reserve(self, request: Request, hit: Hit) -> bool:
        if not self._context_left(request):
            return False
        spare = self._spare if self._running else (0,) * len(self._spare)
        return self._kv.reserve(request, self.reach(request), spare=spare, hit=hit)

    def reach(self, request: Request) -> int:
        """Positions to promise at admission."""
        if not self._contiguous or request.want != "sample":
            return request.reach
        return max(request.reach, min(self._shape.max_len, self._kv.capacity() or self._shape.max_len))

    def _context_left(self, request: Request) -> bool:
        """Whether all running requests and this one could be in one step."""
        if self._shape.context is None or not self._running:
            return True
        return sum(r.reach for r in self._running) + request.reach <= self._shape.context

    def _extend(self, request: Request, rows: int) -> None:
        if not self._kv.extend(request, request.computed + rows):
            raise AssertionError(f"request {request.id}: blocks promised at admission are not there")
