"""The desk: where the event loop meets the engine thread.

One mailbox for all requests, so that a step of the engine costs one wake-up; a bounded outbox for each, in
which news that nobody has fetched yet are merged. Abort on the way out is the caller's duty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from spola.core.params import SamplingParams
from spola.runtime.answer import Delta, Job
from spola.runtime.loop import AsyncMailbox, Mail
from spola.runtime.service import Service

__all__ = ["Desk", "Ticket"]


class Ticket:
    """One request in flight: ``get`` waits for news. Holds at most one Delta for each choice.

    A request of several prompts has several ``jobs``; ``Delta.index`` counts through the choices of all.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)
        self._waiting: dict[int, Delta] = {}
        self._news = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def job(self) -> Job:
        """The only job, or the first."""
        return self.jobs[0]

    @property
    def done(self) -> bool:
        return all(job.done for job in self.jobs)

    def put(self, delta: Delta) -> None:
        """Take news in; a slow reader finds them merged, so that the outbox stays as small as the answer."""
        old = self._waiting.get(delta.index)
        if old is not None:
            delta = Delta(
                delta.index,
                old.text + delta.text,
                old.token_ids + delta.token_ids,
                old.logprobs + delta.logprobs,
                delta.finish_reason,
                delta.error,
                delta.stop_id,
                delta.cut,
            )
        self._waiting[delta.index] = delta
        self._news.set()
        if self.done:
            self._ended.set()

    async def end(self) -> None:
        """Wait until every choice has ended."""
        await self._ended.wait()

    async def get(self, timeout: float | None = None) -> list[Delta]:
        """News since the last call, at least one unless ``timeout`` seconds pass without."""
        if not self._waiting:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), timeout)
            except TimeoutError:
                return []
        news = list(self._waiting.values())
        self._waiting.clear()
        return news


class Desk:
    """Takes requests in on the event loop and hands their news back there."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._tickets: dict[int, tuple[Ticket, Job, int]] = {}  # by id: and how many choices come before
        self._mailbox = AsyncMailbox(asyncio.get_running_loop(), self._deliver)

    def submit(self, ids: Sequence[int], params: SamplingParams, **how: Any) -> Ticket:
        """Queue a request, as ``Service.submit``. Raises SpolaError when it is refused at once."""
        return self.submit_all([ids], params, **how)

    def submit_all(self, prompts: Sequence[Sequence[int]], params: SamplingParams, **how: Any) -> Ticket:
        """Queue one request of several prompts: all of them or, if one is refused at once, none."""
        for ids in prompts:
            self.service.check(ids, params)
        jobs: list[Job] = []
        try:
            jobs += (self.service.submit(ids, params, self._mailbox, **how) for ids in prompts)
        except BaseException:
            for job in jobs:
                self.service.abort(job)
            raise
        ticket = Ticket(jobs)
        for place, job in enumerate(jobs):
            for id in job.ids:
                self._tickets[id] = ticket, job, place * params.n
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for ``ticket`` any more: abort what still runs and forget it."""
        for job in ticket.jobs:
            for id in job.ids:
                self._tickets.pop(id, None)
            if not job.done:
                self.service.abort(job)

    @property
    def busy(self) -> bool:
        return bool(self._tickets)

    def abort_all(self) -> None:
        """End every request; their tickets hear of it."""
        self.service.loop.abort(list(self._tickets))

    def _deliver(self, mail: list[Mail]) -> None:
        for piece in mail:
            found = self._tickets.get(piece.id)
            if found is not None:
                ticket, job, before = found
                delta = job.take(piece)
                delta.index += before
                ticket.put(delta)
