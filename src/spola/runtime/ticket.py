"""Ticket: a bounded outbox for one request, from the desk to whoever tells the answer.

News that nobody has fetched are merged. Knows no engine and no HTTP; lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from spola.engine.events import Event
from spola.runtime.answer import Choice, Delta, Job

__all__ = ["Client", "Express", "Lane", "Ticket"]

Express = Callable[[Delta], bool]
Lane = Callable[[str], bool]


class Client(Protocol):
    """On whose behalf requests are taken: its key in fair queueing, and what it may use."""

    key: str
    weight: float

    def begin(self) -> None:
        """A request is about to be queued. Raises RequestError to refuse it."""

    def end(self, jobs: Sequence[Job]) -> None:
        """Called once for each request; a job that is not ``done`` was left by whoever asked."""


class Ticket:
    """One request in flight: ``get`` waits for news. Holds at most one Delta for each choice.

    A request of several prompts has several ``jobs``; ``Delta.index`` counts through the choices of all.

    ``express``, if set, is offered each Delta that comes while ``get`` waits with nothing in the outbox, and
    says whether it has dealt with it; ``get`` then waits on. That spares a future, a timer and some turns of
    the event loop for each token. It is not offered the last Delta of a choice, and must not block; what it
    raises, ``get`` raises. ``lanes``, by request id, are the same for choices of which text alone is told.
    """

    def __init__(self, jobs: Sequence[Job], client: Client | None = None) -> None:
        self.jobs = tuple(jobs)
        self.client = client
        self.express: Express | None = None
        self.lanes: dict[int, tuple[int, Choice, Lane]] = {}  # with the index as in Delta
        self._waiting: dict[int, Delta] = {}
        self._reader: asyncio.Future[None] | None = None  # of whoever waits in ``get``: one at a time
        self._fault: Exception | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._last_s = 0.0  # when something last came, on the event loop's clock

    @property
    def job(self) -> Job:
        """The only job, or the first."""
        return self.jobs[0]

    @property
    def done(self) -> bool:
        return all(job.done for job in self.jobs)

    def short(self, event: Event, now: float) -> bool:
        """Take ``event`` the shortest way: tokens of a choice with a lane. Whether that was possible."""
        found = self.lanes.get(event.id)
        if found is None or self._reader is None or self._waiting:
            return False
        if event.finish_reason is not None or event.logprobs or event.prompt_logprobs:
            return False
        index, choice, lane = found
        ids = event.ids
        text = choice.gain(ids)
        self._last_s = now
        try:
            if lane(text):
                return True
        except Exception as error:
            self._fault = error
        _wake(self._reader)
        self._waiting[index] = Delta(index, text, ids, cut=choice.stream.stopped)
        return True

    def put(self, delta: Delta, now: float) -> None:
        """Take news in; a slow reader finds them merged, so that the outbox stays as small as the answer.

        ``now`` is on the event loop's clock.
        """
        reader = self._reader
        if reader is not None:
            if self.express is not None and not self._waiting and delta.finish_reason is None:
                self._last_s = now
                try:
                    if self.express(delta):
                        return
                except Exception as error:
                    self._fault = error
            _wake(reader)
        old = self._waiting.get(delta.index)
        self._waiting[delta.index] = delta if old is None else _merged(old, delta)
        if delta.finish_reason is not None and self.done:
            self._ended.set()

    async def end(self) -> None:
        """Wait until every choice has ended."""
        await self._ended.wait()

    async def get(self, timeout: float | None = None) -> list[Delta]:
        """News since the last call, at least one unless ``timeout`` seconds pass without."""
        if not self._waiting:
            # A future and a timer: asyncio.wait_for would make a task as well.
            self._reader = reader = self._loop.create_future()
            self._last_s = self._loop.time()
            alarm = None if timeout is None else _Alarm(self, reader, timeout)
            try:
                await reader
            finally:
                self._reader = None
                if alarm is not None:
                    alarm.cancel()
            if self._fault is not None:
                raise self._fault
        news = list(self._waiting.values())
        self._waiting.clear()
        return news


class _Alarm:
    """Wakes the reader of ``ticket`` when nothing has come for ``silence_s``: a timer for many tokens."""

    def __init__(self, ticket: Ticket, reader: asyncio.Future[None], silence_s: float) -> None:
        self._ticket, self._reader, self._silence_s = ticket, reader, silence_s
        self._timer = ticket._loop.call_later(silence_s, self._ring)

    def cancel(self) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        due, loop = self._ticket._last_s + self._silence_s, self._ticket._loop
        if due > loop.time():
            self._timer = loop.call_at(due, self._ring)
        else:
            _wake(self._reader)


def _merged(old: Delta, new: Delta) -> Delta:
    return Delta(
        new.index,
        old.text + new.text,
        old.token_ids + new.token_ids,
        old.logprobs + new.logprobs,
        new.finish_reason,
        new.error,
        new.stop_id,
        new.cut,
    )


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)
