"""Deadlines of requests: when they must have begun, and when they must have ended. Reads no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from spola.engine.events import Event
from spola.engine.request import Request

__all__ = ["Deadlines", "expired"]


class Deadlines:
    """A heap; those of requests that have ended or begun meanwhile are passed over when their time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    @property
    def next(self) -> float:
        """When the next one passes; infinity without any."""
        return self._heap[0][0] if self._heap else math.inf

    def note(self, request: Request) -> None:
        for at in (request.deadline_s, request.start_by_s):
            if at is not None:
                heappush(self._heap, (at, request.id))

    def passed(self, now: float, requests: Mapping[int, Request]) -> Iterator[Request]:
        """The ``requests`` that must end ``now``, each once for each of its deadlines."""
        while self._heap and self._heap[0][0] <= now:
            at, id = heappop(self._heap)
            request = requests.get(id)
            if request is not None and (request.scheduled_s is None or at == request.deadline_s):
                yield request


def expired(request: Request) -> Event:
    """What a request is told whose deadline has passed."""
    error = f"the deadline passed after {request.n_output} tokens"
    if request.scheduled_s is None:
        error += ", before its turn came"
    return Event(request.id, request.choice, finish_reason="error", error=error, late=True)
