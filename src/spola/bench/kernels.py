"""Speed of the linear kernels, one thread: every weight type, a few shapes and numbers of activation rows.

Each rate stands beside two limits measured in the same run: multiply-adds on registers alone in the kernel's
activation format, and memory reads (for one row).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spola.core.dtype import BY_NAME
from spola.core.errors import ConfigError
from spola.runtime.limits import Limits

__all__ = ["ROWS", "SHAPES", "bench_kernels"]

SHAPES = ((2048, 2048), (8192, 2048))  # output rows, columns: in cache, and far beyond it for wide types
ROWS = (1, 2, 4, 8, 16, 64)
PASSES = 7


def bench_kernels(
    limits: Limits,
    types: Iterable[str] = tuple(BY_NAME),
    shapes: Sequence[tuple[int, int]] = SHAPES,
    rows: Sequence[int] = ROWS,
    *,
    precise: bool = False,
) -> list[dict[str, Any]]:
    """One row per type, shape and number of activation rows ``m``; rates are the best of seven passes.

    ``gmac_s``: 1e9 multiply-adds per second; ``of_peak``: as a fraction of the format's peak; ``gb_s``:
    packed weights read per second. Raises ConfigError without the native backend.
    """
    try:
        from spola.backends.native import measure_linear
    except ImportError:
        raise ConfigError("the native backend is not built here") from None
    table = []
    for name in types:
        for n, k in shapes:
            for m in rows:
                form, size, seconds = measure_linear(name, n, k, m, PASSES, precise=precise)
                rate = n * k * m / min(seconds)
                table.append(
                    {
                        "type": name,
                        "format": form,
                        "rows": n,
                        "columns": k,
                        "m": m,
                        "gmac_s": rate / 1e9,
                        "of_peak": rate / limits.peak[form],
                        "gb_s": size / min(seconds) / 1e9,
                    }
                )
    return table
