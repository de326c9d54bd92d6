"""The lane: compilations beside running answers, few at once, and the long ones at a low priority.

A compilation leaves the interpreter's lock but takes a core, and the engine wants all of them. Knows nothing
of grammars.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import TypeVar

from spola.core.errors import RequestError

__all__ = ["Lane"]

T = TypeVar("T")

SHORT_S = 0.05
NICE = 10
WAIT_S = 30.0


class Lane:
    """Runs work in threads of its own, at most ``width`` at once."""

    def __init__(self, width: int) -> None:
        self._free = threading.Semaphore(width)

    def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. What takes long goes on at a lower priority, on Linux.

        Raises RequestError with status 503 when others do not leave the lane for half a minute.
        """
        if not self._free.acquire(timeout=WAIT_S):
            raise RequestError(
                "too many grammars are being compiled; try again", code="busy", status=503, retry_after=10
            )
        result: Future[T] = Future()
        worker = threading.Thread(target=self._run, args=(work, result), name="spola-compile", daemon=True)
        try:
            worker.start()
        except BaseException:
            self._free.release()
            raise
        try:
            return result.result(SHORT_S)
        except TimeoutError:
            if not result.done():
                _lower(worker.native_id)
        return result.result()

    def _run(self, work: Callable[[], T], result: Future[T]) -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)
        finally:
            self._free.release()


def _lower(thread: int | None) -> None:
    """Lower the priority of one thread; only Linux has one for each."""
    if sys.platform == "linux" and thread is not None:
        with contextlib.suppress(OSError):  # it has just ended, or this is not allowed here
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
