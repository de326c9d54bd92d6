"""Turns: several engines in one process share its processors, one step at a time, in the order they ask.

Two engines that computed at once would have twice the threads that the machine has; so each waits for the
step of the other, and an engine alone never waits.
"""

from __future__ import annotations

import threading
from types import TracebackType

__all__ = ["Turns"]


class Turns:
    """A lock whose waiters are served first come, first served. Not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._serving = 0

    def __enter__(self) -> None:
        with self._changed:
            mine, self._next = self._next, self._next + 1
            while mine != self._serving:
                self._changed.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._serving += 1
            self._changed.notify_all()
