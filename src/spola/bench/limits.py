"""This machine's limits, measured now: memory reads, and multiply-adds by kind. Nothing is kept."""

from __future__ import annotations

import fcntl
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spola.core.errors import ConfigError

__all__ = ["Limits", "bench_lock", "measure_limits"]

PASSES = 5
LEAST_BUFFER = 512 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """``read`` in bytes per second; the others in multiply-adds per second, by activation format."""

    isa: str
    read: float
    peak: dict[str, float]

    def as_json(self) -> dict[str, float]:
        """In the units of the trade: an operation is a multiply or an add."""
        return {
            "read_gb_s": self.read / 1e9,
            "int8_gops": 2 * self.peak["a8"] / 1e9,
            "int16_gops": 2 * self.peak["a16"] / 1e9,
            "f32_gflops": 2 * self.peak["f32"] / 1e9,
        }


def measure_limits(threads: int, buffer_bytes: int = 0) -> Limits:
    """Five passes of each, interleaved, with ``threads`` threads: median of reads, best of arithmetic.

    Reads go over ``buffer_bytes`` bytes, at least 512 MB. Raises ConfigError without the native backend.
    """
    try:
        from spola.backends.native import instruction_sets, measure_peak, measure_read_bandwidth
    except ImportError:
        raise ConfigError("the native backend is not built here, and it measures the machine") from None
    size = max(buffer_bytes, LEAST_BUFFER)
    read: list[float] = []
    peak: dict[str, list[float]] = {"f32": [], "a8": [], "a16": []}
    for _ in range(PASSES):
        read.append(measure_read_bandwidth(size, threads, 1))
        for kind, rates in peak.items():
            rates.append(measure_peak(kind, threads))
    isa = instruction_sets().chosen
    return Limits(isa, statistics.median(read), {k: max(v) for k, v in peak.items()})


@contextmanager
def bench_lock() -> Iterator[float]:
    """Waits until no other benchmark runs on this machine; gives the load average found then."""
    path = Path(tempfile.gettempdir()) / f"spola-bench-{os.getuid()}.lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield os.getloadavg()[0]
