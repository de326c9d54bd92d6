"""Compiled grammars that are kept, and those being compiled: what was asked for longest ago goes first.

Bounded by number and by the processor time that compiling took, with which the memory of a grammar grows: a
short text may make a large one. Knows nothing of grammars.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["GrammarCache"]

T = TypeVar("T")


class GrammarCache(Generic[T]):
    """Futures of results by key: at most ``most``, which took at most ``seconds`` together."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Future[T], float]] = OrderedDict()

    def enter(self, key: Hashable) -> tuple[Future[T], bool]:
        """The future for ``key``, and whether it is new: whoever gets a new one sets it."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found[0], False
            mine: Future[T] = Future()
            self._kept[key] = mine, 0.0
            self._shrink()
            return mine, True

    def keep(self, key: Hashable, seconds: float) -> None:
        """The result of ``key`` is there and took ``seconds``."""
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept[key] = found[0], seconds
                self._shrink()

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)

    def _shrink(self) -> None:
        total = sum(seconds for _, seconds in self._kept.values())
        while len(self._kept) > self._most or (total > self._seconds and len(self._kept) > 1):
            _, (_, seconds) = self._kept.popitem(last=False)
            total -= seconds
