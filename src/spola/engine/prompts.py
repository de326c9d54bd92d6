"""Prompts: the rows of a step that go to prompts being computed, and to new ones.

Takes waiting requests into the running ones; whose turn it is to wait is ``admission``'s business.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from itertools import islice

from spola.engine.admission import MAX_HELD_BACK, Admission, Door
from spola.engine.fair import Order, Seats
from spola.engine.hits import PrefixCache
from spola.engine.kv import Hit, KvSpace
from spola.engine.limits import Limits, Shape
from spola.engine.plan import Plan
from spola.engine.request import Rank, Request, Status
from spola.engine.stats import Stats

__all__ = ["Prompts"]


def _rank(request: Request) -> Rank:
    return request.rank


class _Turn:
    """Whose prompts come first in ``plan``: those of keys with few of the ``seats``; None: all keys are one.

    ``pushed``: a prompt came after one of a key with fewer.
    """

    def __init__(self, plan: Plan, seats: Seats | None) -> None:
        self._plan = plan
        self._shared = plan.short
        self._seats = seats
        self._key, self._least = "", 0.0  # of the first with rows
        self._half: int | None = None
        self._light_half: int | None = None
        self.pushed = False

    def halve(self, start: int) -> None:
        """None may have more than half of the rows, the best of which begins at ``start``."""
        self._half = (self._plan.prompt_room(start) + 1) // 2
        self._light_half = self._half
        if self._seats is not None:
            self._plan.short = False
            self._light_half = (self._plan.prompt_room(start) + 1) // 2

    def load(self, request: Request) -> float:
        return 0.0 if self._seats is None else self._seats.load(request)

    def before(self, new: Request, hit: Hit, other: Request) -> bool:
        """Whether a ``new`` request, of which the cache has ``hit``, comes before ``other``, which runs."""
        return (self.load(new), new.goal - hit.tokens) < (self.load(other), other.missing)

    def comes(self, request: Request) -> int | None:
        """``request`` is the next: how many rows it may have. Behind a light key's few, to end soon."""
        light = self._seats is not None and self._seats.light(request)
        load, plan = self.load(request), self._plan
        plan.short = self._shared and not light
        if not plan.prompt_rows:
            self._key, self._least = request.key, load
        elif load > self._least and request.key != self._key and not self.pushed:
            self.pushed = True
            if load >= 2 * self._least and self._half is not None:
                self._half = min(self._half, (plan.crowd_out() + 1) // 2)
        return self._light_half if light else self._half


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
        self._key_seats = limits.key_seats
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
        self._pushed = False  # the last step with prompts had those of lighter keys first
        self._best_next = True  # where chunks are fixed: the best-ranked prompt, not the shortest

    def due(self, now: float) -> float:
        """When an empty engine may begin with those that wait: ``now``, or later for a batch not yet full."""
        return self._admission.due(self._waiting, now)

    def ahead(self, priority: int) -> Request | None:
        """The first waiting request, of a class better than ``priority``, for which others may give way.

        None for a choice that waits for its choice 0, and when the keys of all such have their places.
        """
        if self._waiting[0].rank.priority >= priority:
            return None  # as nearly always
        seats = Seats(self._running, self._key_seats)
        for request in islice(self._waiting, MAX_HELD_BACK):
            if request.rank.priority >= priority:
                return None
            if not seats.full(request.key):
                leader = request.leader
                return request if leader in (None, request.id) or leader not in self._requests else None
        return None

    def fill(self, plan: Plan, now: float, *, shared: bool = False) -> None:
        """Rows of prompts being computed and of new ones.

        While others wait, none has more than half of the rows: the best rank has its half, the shortest ones
        come next, and what nobody else needs goes round again. Where chunks are fixed the two take turns.
        ``shared`` by several keys, prompts of keys with fewer places come first, in every second step at
        most. Those of a key with twice as many or more then get no more rows than they: the step is short.
        """
        prompts = [r for r in self._running if not r.in_flight and not r.decoding]
        if not prompts and not self._waiting:
            return  # as in most steps
        waiting = self._waiting  # or the one for whom others gave way
        if plan.victims and plan.head is not None:
            waiting = [plan.head]
        seats = Seats(self._running, self._key_seats)
        door = self._admission.open(waiting, self._running, self._requests, seats, now)
        if plan.preempted:
            door.places = 0
        first, running = len(plan.entries), len(self._running)
        ahead = shared and not self._pushed
        turn = _Turn(plan, seats if ahead and self._shape.fixed_chunk is None else None)
        if len(prompts) + len(waiting) > 1:
            turn.halve(prompts[0].computed if prompts else 0)
        if prompts and (self._shape.fixed_chunk is None or self._best_next):
            best = min(prompts, key=lambda r: (turn.load(r), r.rank))
            new = door.peek() if ahead else None
            if new is None or turn.load(new[0]) >= turn.load(best):
                prompts.remove(best)
                self._advance(plan, best, turn.comes(best))
                door.look_again()
        prompts.sort(key=lambda r: (turn.load(r), r.missing))
        while True:
            new = door.peek()
            if new is not None and (not prompts or turn.before(*new, prompts[0])):
                self._begin(*new, door, plan, turn.comes(new[0]), now)
            elif prompts:
                self._advance(plan, prompts[0], turn.comes(prompts.pop(0)))
                door.look_again()
            else:
                break
        self._pushed = turn.pushed
        self._admission.close(door, len(self._running) - running)
        plan.short = shared
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
        if not self._kv.extend(request, request.computed + rows, lend=True):
            raise AssertionError(f"request {request.id}: blocks promised at admission are not there")
