"""Percentiles and what is printed of a sample. One rule for every figure that spola reports.

The q-th percentile of n sorted values lies at position q / 100 * (n - 1), linear between the two values next
to it: NumPy's default ("linear"), type 7 of Hyndman and Fan (1996).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

__all__ = ["Window", "describe", "percentile"]


def percentile(ordered: Sequence[float], q: float) -> float:
    """The ``q``-th percentile, 0 to 100, of values in rising order. Raises ValueError without any."""
    if not ordered:
        raise ValueError("no values have no percentile")
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile is from 0 to 100, not {q}")
    at = q / 100 * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    below, above, part = ordered[low], ordered[high], at - low
    # From the nearer end, so that the ends themselves come out exact.
    return below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part)


def describe(values: Iterable[float]) -> dict[str, float | None]:
    """Mean, p50, p95, p99 and max; all None without values."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    return {
        "mean": math.fsum(ordered) / len(ordered),
        "p50": percentile(ordered, 50),
        "p95": percentile(ordered, 95),
        "p99": percentile(ordered, 99),
        "max": ordered[-1],
    }


class Window:
    """The last ``size`` values of a stream, and the count and sum of all.

    One thread adds; another may read, and then sees at worst a value too many or too few.
    """

    __slots__ = ("_values", "count", "size", "total")

    def __init__(self, size: int = 4096) -> None:
        if size < 1:
            raise ValueError(f"a window holds at least one value, not {size}")
        self.size = size
        self.count = 0
        self.total = 0.0
        self._values = array("d")

    def add(self, value: float, n: int = 1) -> None:
        """``n`` times ``value``."""
        values, size, count = self._values, self.size, self.count
        for at in range(count, count + n):
            if at < size:
                values.append(value)
            else:
                values[at % size] = value
        self.count = count + n
        self.total += value * n

    def describe(self) -> dict[str, float | None]:
        """Of the values still held."""
        return describe(self._values.tolist())
