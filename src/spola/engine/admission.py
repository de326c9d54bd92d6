"""Admission: which waiting requests may begin in a step, one after the other, and from which cached blocks.

The batching mode is a condition here and nothing else: continuous admits whenever there is a place, static
only into an empty engine, dynamic likewise once the batch is full or its oldest request has waited for long.

A request that does not fit into the free blocks may be passed by smaller ones behind it, a bounded number of
times; then everybody waits for it. A choice of a request waits until choice 0 has computed the prompt, and a
request whose next block a better-ranked one is just computing waits for that block. A key that has all the
places that one key may have is passed by other keys, as often as need be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from spola.engine.fair import Seats
from spola.engine.hits import PrefixCache
from spola.engine.kv import NO_HIT, Hit
from spola.engine.limits import Limits
from spola.engine.request import Request, Status

__all__ = ["MAX_HELD_BACK", "MAX_PASSED", "Admission", "Door"]

MAX_PASSED = 16  # requests that may begin before one that came first and does not fit
MAX_TRIED = 8  # requests behind it that are looked at in one step
MAX_HELD_BACK = 256  # requests of keys with all their places that are looked past in one step


class Door:
    """The waiting requests of one step: ``peek`` at the next that may begin, then say what came of it."""

    def __init__(
        self,
        queue: Sequence[Request],
        places: int,
        running: Sequence[Request],
        requests: Mapping[int, Request],
        cache: PrefixCache,
        seats: Seats,
    ) -> None:
        self._queue = deque(queue)
        self._seats = seats
        self._held_back = 0
        self._running = running
        self._requests = requests
        self._cache = cache
        self._head: Request | None = None  # the first that did not fit
        self._tried = 0
        self._next: tuple[Request, Hit] | None = None
        self.places = places
        self.closed = False  # somebody did not fit

    def peek(self) -> tuple[Request, Hit] | None:
        """The next request and the blocks it can take over; None: nobody else in this step."""
        if self._next is not None and self.places > 0:
            return self._next
        while self._queue and self.places > 0:
            if self._head is not None and (self._head.passed >= MAX_PASSED or self._tried >= MAX_TRIED):
                return None
            if self._seats.full(self._queue[0].key):
                self._hold_back()
                continue
            hit = self._begin(self._queue[0])
            if hit is not None:
                self._next = self._queue[0], hit
                return self._next
            self._queue.popleft()
        return None

    def look_again(self) -> None:
        """Blocks were taken since the last ``peek``, perhaps those it has found."""
        self._next = None

    def admitted(self) -> None:
        """The request of the last ``peek`` has begun."""
        request = self._queue.popleft()
        self._seats.take(request)
        self._next = None
        self.places -= 1
        if self._head is not None:
            self._head.passed += 1

    def refused(self) -> None:
        """There were no blocks for it."""
        request = self._queue.popleft()
        self._next = None
        self.closed = True
        if self._head is None:
            self._head = request
        else:
            self._tried += 1

    def _hold_back(self) -> None:
        """Look past a request whose key has its places; those of other keys are near the front."""
        self._queue.popleft()
        self.closed = True
        self._held_back += 1
        if self._held_back >= MAX_HELD_BACK:
            self._queue.clear()

    def _begin(self, request: Request) -> Hit | None:
        """What ``request`` can take over; None if it should wait for what another one computes."""
        leader = None if request.leader is None else self._requests.get(request.leader)
        if leader is None or leader is request:
            hit = self._cache.lookup(request)
            return None if self._is_coming(request, hit.tokens) else hit
        # One that begins in this step has a block that is still to be copied: no source for another copy.
        if leader.computed < leader.n_prompt or not leader.sent:
            return None
        found = self._cache.lookup(request)
        shared = self._cache.siblings(request, leader) if leader.status is Status.RUNNING else NO_HIT
        return shared if shared.tokens > found.tokens else found

    def _is_coming(self, request: Request, found: int) -> bool:
        """Whether a better-ranked request computes the block after the first ``found`` tokens right now."""
        end = self._cache.next_block(found)
        if end >= request.goal or not self._cache.reads(request):
            return False
        for other in self._running:
            if other.computed >= end or other.goal < end or other.rank > request.rank:
                continue
            if other.known[end - 1] != request.known[end - 1] or other.known[:end] != request.known[:end]:
                continue
            if (other.salt, other.adapter) == (request.salt, request.adapter):
                return True
        return False


class Admission:
    """The batching mode of ``limits``: how many requests may begin, from one step to the next."""

    def __init__(self, limits: Limits, seats: int, cache: PrefixCache) -> None:
        self._mode = limits.batching
        self._window_s = limits.batch_window_s
        self._seats = seats
        self._cache = cache
        self._left = 0  # of the batch that is being filled

    def open(
        self,
        waiting: Sequence[Request],
        running: Sequence[Request],
        requests: Mapping[int, Request],
        seats: Seats,
        now: float,
    ) -> Door:
        """The door of a step. Tell ``close`` when the step is planned."""
        places = self._seats - len(running)
        if self._mode != "continuous":
            if not running:
                self._left = 0 if self.due(waiting, now) > now else min(self._seats, len(waiting))
            places = min(places, self._left)
        return Door(waiting, places, running, requests, self._cache, seats)

    def close(self, door: Door, begun: int) -> None:
        """``begun`` requests have begun. A batch that somebody does not fit into is full."""
        self._left = 0 if door.closed else self._left - begun

    def due(self, waiting: Sequence[Request], now: float) -> float:
        """When an empty engine may begin with ``waiting``: ``now``, or later for a batch that is not full."""
        if self._mode != "dynamic" or len(waiting) >= self._seats or not waiting:
            return now
        return max(now, min(request.arrival_s for request in waiting) + self._window_s)
