"""Axes: where values lie on a scale, linear or logarithmic, and at which round numbers ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["Axis", "plain", "short"]


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high`` over ``length`` points."""

    low: float
    high: float
    length: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], length: float, *, log: bool = False) -> Axis:
        """Wide enough for ``values``; a linear axis begins at 0 unless they are negative."""
        found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        if log:
            if not found:
                low, high = 1.0, 10.0
            return cls(
                10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001)), length, True
            )
        low = min(low, 0.0)
        return cls(low, high if high > low else low + 1.0, length)

    def at(self, value: float) -> float:
        """Points from the beginning of the axis, within it."""
        if self.log:
            part = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.length * min(max(part, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round numbers on the axis: powers of ten, or about five steps of 1, 2 or 5."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            every = max(1, (last - first) // 6)
            return [10.0**power for power in range(first, last + 1, every)]
        rough = (self.high - self.low) / 5
        size = 10 ** math.floor(math.log10(rough))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [(first + i) * step for i in range(count)]


def plain(value: float, digits: int = 3) -> str:
    """``value`` to ``digits`` significant ones, with no exponent, thousands apart: 0.00012, 2.5, 1,110."""
    if not math.isfinite(value):
        return str(value)
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def short(value: float) -> str:
    """``value`` for a label: 0.25, 40, 1.5k, 2M, 3G."""
    rounded = float(f"{value:.4g}")
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size <= abs(rounded) < math.inf:
            return f"{plain(rounded / size, 4)}{unit}"
    return plain(value, 3 if abs(value) < 999.5 else 4)
