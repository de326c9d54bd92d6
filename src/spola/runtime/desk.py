"""The desk: where the event loop meets the engine thread.

One mailbox for all requests, so that a step of the engine costs one wake-up; an outbox for each, its Ticket;
bounds on how many may be in flight. Abort on the way out is the caller's duty.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from spola.core.errors import RequestError
from spola.core.params import SamplingParams
from spola.engine.events import Event
from spola.runtime.answer import Job
from spola.runtime.loop import AsyncMailbox, Mail
from spola.runtime.service import Service
from spola.runtime.ticket import Client, Ticket

__all__ = ["Desk", "DeskLimits", "Explaining"]

MOST_EXPLAINED = 8  # that may wait for their explanation when another is asked for


@dataclass(frozen=True, slots=True)
class DeskLimits:
    """``live``: choices in flight at once, running or waiting; None: no bound. Times in seconds.

    ``keys`` is how many keys there are: a key always has room for ``live`` / (2 * ``keys``) choices of its
    own, also when others have filled the queue.
    """

    live: int | None = None
    keys: int = 1
    timeout_s: float | None = None
    start_within_s: float | None = None


class Explaining:
    """Explanations take the interpreter from everybody's steps: one is made at a time, and few wait."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    def check(self) -> None:
        """Raise RequestError 429 when too many wait."""
        if self._waiting >= MOST_EXPLAINED:
            raise RequestError(
                f"{self._waiting} answers wait to be explained, one at a time; ask without explain, or later",
                param="explain",
                code="queue_full",
                status=429,
                retry_after=self._waiting,
            )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn and have it for the block."""
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


class Desk:
    """Takes requests in on the event loop and hands their news back there.

    ``for_client`` gives the same desk as one client sees it.
    """

    def __init__(self, service: Service, limits: DeskLimits = DeskLimits()) -> None:
        self.service = service
        self.limits = limits
        self.explaining = Explaining()
        self._client: Client | None = None
        self._board = _Board(service, asyncio.get_running_loop())

    def for_client(self, client: Client) -> Desk:
        """This desk, taking requests on behalf of ``client``."""
        desk = copy.copy(self)
        desk._client = client
        return desk

    def submit(self, ids: Sequence[int], params: SamplingParams, **how: Any) -> Ticket:
        """Queue a request, as ``Service.submit``. Raises SpolaError when it is refused at once."""
        return self.submit_all([ids], params, **how)

    def submit_all(self, prompts: Sequence[Sequence[int]], params: SamplingParams, **how: Any) -> Ticket:
        """Queue one request of several prompts: all of them or, if one is refused at once, none."""
        client, limits = self._client, self.limits
        key = "" if client is None else client.key
        self._check_room(key, params.n * len(prompts))
        for ids in prompts:
            self.service.check(ids, params)  # before the client pays for it
        if client is not None:
            client.begin()
            how |= {"key": key, "weight": client.weight}
        how["timeout_s"] = _least(how.get("timeout_s"), limits.timeout_s)
        how["start_within_s"] = limits.start_within_s
        jobs: list[Job] = []
        try:
            jobs += (self.service.submit(ids, params, self._board.mailbox, **how) for ids in prompts)
        except BaseException:
            for job in jobs:
                self.service.abort(job)
            raise
        ticket = Ticket(jobs, client)
        self._board.enter(ticket, key)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for ``ticket`` any more: abort what still runs and forget it. Idempotent."""
        ticket.express = None
        ticket.lanes.clear()
        if not self._board.forget(ticket):
            return
        for job in ticket.jobs:
            if not job.done:
                self.service.abort(job)
        if ticket.client is not None:
            ticket.client.end(ticket.jobs)

    @property
    def busy(self) -> bool:
        return bool(self._board.places)

    @property
    def live(self) -> int:
        """Choices that have not ended."""
        return self._board.live.total()

    @property
    def live_since(self) -> float | None:
        """When the desk, empty before, last took a request, on the service's clock; None: it is empty."""
        return self._board.live_since if self.live else None

    def abort_all(self) -> None:
        """End every request; their tickets hear of it."""
        self.service.loop.abort(list(self._board.places))

    def _check_room(self, key: str, n: int) -> None:
        most, live = self.limits.live, self._board.live
        if most is None or live.total() + n <= most:
            return
        if live[key] + n <= most // (2 * self.limits.keys):
            return
        seats = self.service.config.max_seqs
        if n > most:
            raise RequestError(f"{n} choices are asked for; this server holds {most} at most", param="n")
        raise RequestError(
            f"the queue is full: {live.total()} choices are in flight, of which {seats} can run at a time",
            code="queue_full",
            status=429,
            retry_after=self._board.wait_s(seats),
        )


class _Board:
    """The tickets of one desk, by request id, and how many choices each key has in flight."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.places: dict[int, tuple[Ticket, Job, int]] = {}  # by id: and how many choices come before
        self.live: Counter[str] = Counter()
        self.live_since: float | None = None
        self.mailbox = AsyncMailbox(loop, self._deliver)
        self._loop = loop
        self._service = service
        self._open: dict[int, str] = {}  # choices that have not ended -> key

    def enter(self, ticket: Ticket, key: str) -> None:
        if not self._open:
            self.live_since = self._service.loop.clock()
        before = 0
        for job in ticket.jobs:
            for id in job.ids:
                self.places[id] = ticket, job, before
                self._open[id] = key
            self.live[key] += len(job.ids)
            before += len(job.ids)

    def forget(self, ticket: Ticket) -> bool:
        """Whether ``ticket`` was known."""
        ids = [id for job in ticket.jobs for id in job.ids]
        known = [self.places.pop(id, None) is not None for id in ids]
        for id in ids:
            self._close(id)
        return any(known)

    def wait_s(self, seats: int) -> int:
        """About how long until there is room: a round of the requests that run."""
        latency = self._service.metrics.times["latency_s"].describe()["p50"] or 1.0
        return max(1, min(60, round(latency / max(1, seats))))

    def _close(self, id: int) -> None:
        key = self._open.pop(id, None)
        if key is not None:
            self.live[key] -= 1
            if not self.live[key]:
                del self.live[key]

    def _deliver(self, mail: list[Mail]) -> None:
        now, places = self._loop.time(), self.places
        for piece in mail:
            found = places.get(piece.id)
            if found is not None:
                ticket, job, before = found
                if ticket.lanes and isinstance(piece, Event) and ticket.short(piece, now):
                    continue
                delta = job.take(piece)
                if before:
                    delta.index += before
                if delta.finish_reason is not None:
                    self._close(piece.id)
                ticket.put(delta, now)


def _least(*seconds: float | None) -> float | None:
    return min((s for s in seconds if s is not None), default=None)
