"""Speed of the linear kernels, one thread: every weight type, a few shapes and numbers of activation rows.

Each rate stands beside limits measured in the same run: the kernel's own mix of instructions on registers
alone (its ceiling), the products of its activation format alone (the peak), and memory reads (for one row).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spola.core.dtype import BY_NAME
from spola.core.errors import ConfigError
from spola.runtime.limits import MachineLimits

__all__ = ["ROWS", "SHAPES", "bench_kernels"]

SHAPES = ((2048, 2048), (8192, 2048))  # output rows, columns: in cache, and far beyond it for wide types
ROWS = (1, 2, 4, 8, 16, 64)
PASSES = 7


def bench_kernels(
    limits: MachineLimits,
    types: Iterable[str] = tuple(BY_NAME),
    shapes: Sequence[tuple[int, int]] = SHAPES,
    rows: Sequence[int] = ROWS,
    *,
    precise: bool = False,
) -> list[dict[str, Any]]:
    """One row per type, shape and number of activation rows ``m``; rates are the best of seven passes.

    ``gmac_s``: 1e9 multiply-adds per second; ``ceiling_gmac_s``: of the kernel's instructions on registers,
    without unpacking of weights, measured right before and after; ``of_ceiling``, ``of_peak``: ``gmac_s`` as
    a fraction of it and of the format's peak; ``gb_s``: packed weights read per second; ``of_read``: as a
    fraction of the memory's reads. Raises ConfigError without the native backend.
    """
    try:
        from spola.backends.native import measure_linear, measure_mix
    except ImportError:
        raise ConfigError("the native backend is not built here") from None
    table = []
    for name in types:
        ceiling = measure_mix(name, precise=precise)
        found = [
            (n, k, m, *measure_linear(name, n, k, m, PASSES, precise=precise))
            for n, k in shapes
            for m in rows
        ]
        ceiling = max(ceiling, measure_mix(name, precise=precise))
        for n, k, m, form, size, seconds in found:
            rate, read = n * k * m / min(seconds), size / min(seconds)
            table.append(
                {
                    "type": name,
                    "format": form,
                    "rows": n,
                    "columns": k,
                    "m": m,
                    "gmac_s": rate / 1e9,
                    "ceiling_gmac_s": ceiling / 1e9,
                    "of_ceiling": rate / ceiling,
                    "of_peak": rate / limits.peak[form],
                    "gb_s": read / 1e9,
                    "of_read": read / limits.read,
                }
            )
    return table
