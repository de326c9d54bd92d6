"""The engine thread: it alone touches the engine; everybody else sends commands and receives mail.

One step at a time: commands from the inbox, ``engine.step``, then one ``post`` per mailbox. That comes when
the next step is planned, since until then this thread holds the interpreter and receivers would wake to wait
for it. Text, JSON and connections belong to the receivers. Guards run here, inside the engine's commit.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from spola.core.errors import SpolaError
from spola.engine.engine import Engine
from spola.engine.events import Event
from spola.engine.request import Request
from spola.runtime.fair_lock import FairLock

if TYPE_CHECKING:
    import asyncio  # a tenth of the start-up time of a program that has no event loop

__all__ = ["AsyncMailbox", "EngineLoop", "Mail", "Mailbox", "QueueMailbox", "Refusal"]

SWITCH_INTERVAL_S = 5e-4  # a step of a small model takes milliseconds: waiting 5 ms for the lock would show


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine did not take a request: the last and only mail about it."""

    id: int
    error: SpolaError


Mail = Event | Refusal


class Mailbox(Protocol):
    """Where a request's news go; ``post`` is called on the engine thread, once per step at most."""

    def post(self, mail: list[Mail]) -> None: ...


class QueueMailbox:
    """For a thread that waits: ``get`` gives the next batch."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[Mail]] = queue.SimpleQueue()

    def post(self, mail: list[Mail]) -> None:
        self._queue.put(mail)

    def get(self) -> list[Mail]:
        return self._queue.get()


class AsyncMailbox:
    """For a running event loop: ``deliver`` is called there, once per engine step that has news for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[Mail]], None]) -> None:
        self._loop = loop
        self._deliver = deliver

    def post(self, mail: list[Mail]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._deliver, mail)


@dataclass(frozen=True, slots=True)
class _Add:
    requests: Sequence[Request]
    mailbox: Mailbox


@dataclass(frozen=True, slots=True)
class _Abort:
    ids: Sequence[int]


class _Stop:
    pass


_Command = _Add | _Abort | _Stop


class EngineLoop:
    """Runs ``engine`` on its own thread until ``close``.

    ``clock`` gives seconds; ``add``'s arrival times must come from the same one. ``turn`` is held during each
    step, where several engines share the processors.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.monotonic,
        turn: FairLock | None = None,
    ) -> None:
        self._engine = engine
        self._turn = turn
        self._due: list[Event] = []  # not yet posted
        self.clock = clock
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._mailboxes: dict[int, Mailbox] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._main, name="spola-engine", daemon=True)
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, SWITCH_INTERVAL_S))
        self._thread.start()

    @property
    def alive(self) -> bool:
        return not self._closed and self.failure is None

    def next_id(self) -> int:
        """An id for a Request, never given before by this loop."""
        return next(self._ids)

    def add(self, requests: Sequence[Request], mailbox: Mailbox) -> None:
        """Queue ``requests``; their events go to ``mailbox``. Raises SpolaError when the loop has ended."""
        with self._lock:
            if self.failure is not None:
                raise SpolaError(f"the engine has failed: {self.failure}")
            if self._closed:
                raise SpolaError("the engine is shut down")
            self._inbox.put(_Add(requests, mailbox))

    def abort(self, ids: Sequence[int]) -> None:
        """End requests at the next step boundary. Unknown and finished ids are ignored."""
        self._inbox.put(_Abort(ids))

    def close(self) -> None:
        """Abort what runs, end the thread and close the runner. Idempotent; waits for the step in flight."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._inbox.put(_Stop())
            sys.setswitchinterval(self._interval)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _main(self) -> None:
        try:
            while self._commands():
                if self._turn is None:
                    self._due = self._engine.step(self.clock(), self._post)
                    continue
                if self._turn.taken:
                    self._post()  # not to wait for another engine's step
                with self._turn:
                    self._due = self._engine.step(self.clock(), self._post)
        except Exception as error:  # a broken invariant: no state can be trusted any more
            self._post()
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._post()
            self._end_all("the engine is shut down")
            self._engine.close()

    def _commands(self) -> bool:
        """Take what the inbox holds, waiting while there is nothing to do. False: stop."""
        wait, timeout = not self._engine.has_work, None
        if self._due and (wait or self._engine.wake_at is not None):
            self._post()
        if not wait and self._engine.wake_at is not None:
            wait, timeout = True, max(0.0, self._engine.wake_at - self.clock())
        if not wait and self._inbox.empty():
            return True  # as between most steps: an exception would cost more
        while True:
            try:
                command = self._inbox.get(block=wait, timeout=timeout)
            except queue.Empty:
                return True
            wait, timeout = False, None
            match command:
                case _Stop():
                    return False
                case _Abort(ids):
                    for id in ids:
                        self._engine.abort(id)
                case _Add(requests, mailbox):
                    self._add(requests, mailbox)

    def _add(self, requests: Sequence[Request], mailbox: Mailbox) -> None:
        refused: list[Mail] = []
        for request in requests:
            try:
                self._engine.add(request)
            except SpolaError as error:
                refused.append(Refusal(request.id, error))
            else:
                self._mailboxes[request.id] = mailbox
        if refused:
            mailbox.post(refused)

    def _post(self) -> None:
        """Hand over what is due."""
        if not self._due:
            return
        events, self._due = self._due, []
        mailboxes = self._mailboxes
        found = [mailboxes[event.id] for event in events]
        for event in events:
            if event.finish_reason is not None:
                del mailboxes[event.id]
        if found.count(found[0]) == len(found):  # as on a server
            mail: list[Mail] = [*events]
            found[0].post(mail)
            return
        batches: dict[int, tuple[Mailbox, list[Mail]]] = {}
        for event, mailbox in zip(events, found, strict=True):
            batches.setdefault(id(mailbox), (mailbox, []))[1].append(event)
        for mailbox, mail in batches.values():
            mailbox.post(mail)

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.failure = reason
        self._end_all(f"the engine has failed: {reason}")

    def _end_all(self, reason: str) -> None:
        """Tell everybody that still waits, also those whose request was never taken from the inbox."""
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._inbox.get(block=False)
                if isinstance(command, _Add):
                    for request in command.requests:
                        self._mailboxes[request.id] = command.mailbox
        for id, mailbox in self._mailboxes.items():
            mailbox.post([Refusal(id, SpolaError(reason))])
        self._mailboxes.clear()
