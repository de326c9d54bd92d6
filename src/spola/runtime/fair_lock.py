"""FairLock: with it several engines in one process share its processors, a step at a time, in turn.

Two engines that computed at once would have twice the threads that the machine has; so each waits for the
step of the other, and an engine alone never waits.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

__all__ = ["FairLock"]


class FairLock:
    """A lock whose waiters are served first come, first served. Not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of what follows, never held for long
        self._taken = False
        self._gates: deque[threading.Lock] = deque()  # of those who wait; opened with the turn

    @property
    def taken(self) -> bool:
        """Whether somebody has the turn now."""
        return self._taken

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
        gate.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._gates:
                self._gates.popleft().release()
            else:
                self._taken = False
