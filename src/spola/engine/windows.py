"""How many blocks the requests of a window group can hold: each alone, each between steps, all in one step.

A request with ``c`` computed positions keeps [c - window, c); a slice of r rows adds [c, c + r). An interval
of n positions touches at most (n - 2) // size + 2 blocks, wherever it begins in one. So with r rows a request
holds at most

    (window + r - 2) // size + 2  <=  each + (r - 1) // size,   each = ceil((window - 1) / size) + 2.

``each`` is the request's own at any time: it does for a slice of up to ``size`` rows. What is beyond it is
there between a step's plan and its commit only, and as the rows of all slices in flight are bounded together,
so is their sum: the parts (r - 1) // size add up to (rows - 1) // size at most, however the rows are divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from spola.core.errors import ConfigError

__all__ = ["WindowBound"]


@dataclass(frozen=True, slots=True)
class WindowBound:
    """Blocks: ``alone`` is what one request holds at most, ``each`` what every request is to have at any
    time, ``step`` what all slices in flight together hold beyond that.
    """

    alone: int
    each: int
    step: int

    @classmethod
    def of(cls, window: int, *, block_size: int, max_slice: int, max_rows: int | None) -> WindowBound:
        """For slices of at most ``max_slice`` rows, ``max_rows`` of all together.

        None: nothing bounds them together, so that ``each`` is all that a request holds alone. Raises
        ConfigError for a window of nothing.
        """
        if window < 1:
            raise ConfigError(f"a window KV group needs a window of at least 1 token, not {window}")
        alone = (window + max_slice - 2) // block_size + 2
        if max_rows is None:
            return cls(alone, alone, 0)
        return cls(alone, min(alone, -(-(window - 1) // block_size) + 2), (max_rows - 1) // block_size)

    def together(self, requests: int) -> int:
        """Blocks that ``requests`` of any length never hold more of."""
        return requests * self.each + min(self.step, requests * (self.alone - self.each))
