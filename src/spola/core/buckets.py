"""Buckets: a histogram that only grows, in Prometheus' form. Cheap enough for the engine's thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["Buckets"]


class Buckets:
    """How many values were at most each bound, rising; the sum of all.

    One thread adds; another may read, and then sees at worst a value too many or too few.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError("the bounds of a histogram must rise, and there must be one")
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float, n: int = 1) -> None:
        """``n`` times ``value``."""
        self._counts[bisect_left(self.bounds, value)] += n
        self.total += value * n

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """For each bound, and then for infinity, how many values were not above it."""
        out, seen = [], 0
        for count in self._counts:
            seen += count
            out.append(seen)
        return out
