"""This machine's limits: memory reads, multiply-adds by kind, and what the linear kernels make of them.

``measure_limits`` measures now; ``known_limits`` takes figures kept from an earlier time where they hold.
"""

from __future__ import annotations

import fcntl
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec

from spola.core.errors import CapacityError, ConfigError
from spola.load.cache import cache_folder, write_atomically
from spola.runtime.machine import Machine

__all__ = [
    "KernelRates",
    "Limits",
    "bench_lock",
    "kept_limits",
    "known_limits",
    "measure_limits",
    "measure_rates",
]

PASSES = 5
LEAST_BUFFER = 512 << 20
SMALL_MB = (32, 64, 128, 256)  # buffers that may fit into a cache
SIDE = 2048  # rows and columns of the matrix that kernels are timed on: in cache, so that arithmetic counts
ROWS = (8, 64)
_FILE = "limits.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """``read`` in bytes per second; the others in multiply-adds per second, by activation format.

    ``caches``: bytes per second over smaller buffers, by their size: a model that fits into the caches is
    read faster than memory is.
    """

    isa: str
    read: float
    peak: dict[str, float]
    caches: dict[int, float] = field(default_factory=dict)

    def read_of(self, size: float) -> float:
        """Bytes per second of reading ``size`` bytes again and again: between two sizes that were measured,
        in proportion to the logarithm.
        """
        known = sorted({**self.caches, LEAST_BUFFER: self.read}.items())
        if size <= known[0][0]:
            return known[0][1]
        for (low, slow), (high, fast) in pairwise(known):
            if size <= high:
                part = math.log(size / low) / math.log(high / low)
                return slow + (fast - slow) * part
        return self.read

    def as_json(self) -> dict[str, float]:
        """In the units of the trade: an operation is a multiply or an add."""
        return {
            "read_gb_s": self.read / 1e9,
            "int8_gops": 2 * self.peak["a8"] / 1e9,
            "int16_gops": 2 * self.peak["a16"] / 1e9,
            "f32_gflops": 2 * self.peak["f32"] / 1e9,
        }


# Weight type -> activation rows of a call -> multiply-adds per second of one thread.
KernelRates = Mapping[str, Mapping[int, float]]


class _Kept(msgspec.Struct):
    isa: str
    read: float
    peak: dict[str, float]
    caches: dict[int, float] = {}
    rates: dict[str, dict[int, float]] = {}


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
    small: dict[int, list[float]] = {mb << 20: [] for mb in SMALL_MB}
    peak: dict[str, list[float]] = {"f32": [], "a8": [], "a16": []}
    for _ in range(PASSES):
        read.append(measure_read_bandwidth(size, threads, 1))
        for bytes_, found in small.items():
            found.append(measure_read_bandwidth(bytes_, threads, PASSES))
        for kind, rates in peak.items():
            rates.append(measure_peak(kind, threads))
    isa = instruction_sets().chosen
    caches = {bytes_: statistics.median(found) for bytes_, found in small.items()}
    return Limits(isa, statistics.median(read), {k: max(v) for k, v in peak.items()}, caches)


def measure_rates(types: Iterable[str], *, precise: bool = False) -> dict[str, dict[int, float]]:
    """What one thread's linear kernel makes of each of ``types``; best of a few passes of milliseconds."""
    from spola.backends.native import measure_linear

    rates: dict[str, dict[int, float]] = {}
    for name in types:
        rates[name] = {}
        for m in ROWS:
            _, _, seconds = measure_linear(name, SIDE, SIDE, m, 3 * PASSES, precise=precise)
            rates[name][m] = SIDE * SIDE * m / min(seconds)
    return rates


def known_limits(
    machine: Machine, threads: int, types: Iterable[str] = (), *, precise: bool = False, fresh: bool = False
) -> tuple[Limits, KernelRates]:
    """The kept figures of this machine and thread count, and what is missing measured now (``fresh``: all).

    Figures from a machine with other work on it are not kept. Raises ConfigError without the native backend,
    CapacityError where there is no memory for the buffer.
    """
    try:
        from spola.backends.native import instruction_sets
    except ImportError:
        raise ConfigError("the native backend is not built here, and it measures the machine") from None
    isa = instruction_sets().chosen
    key = _key(machine, threads, isa, precise=precise)
    table = _read()
    kept = None if fresh else table.get(key)
    wanted = list(types)
    busy = os.getloadavg()[0] > machine.cpus + 1
    if kept is None:
        if machine.memory_available // 2 < LEAST_BUFFER:
            raise CapacityError(
                f"measuring the memory takes a buffer of {LEAST_BUFFER >> 20} MB, and half of the "
                f"{machine.memory_available >> 20} MB that are free is less: name the machine with --hardware"
            )
        found = measure_limits(threads)
        kept = _Kept(found.isa, found.read, found.peak, found.caches)
    missing = [name for name in wanted if name not in kept.rates]
    if missing:
        kept.rates |= measure_rates(missing, precise=precise)
    if not busy and (fresh or missing or key not in table):
        with suppress(OSError):  # a read-only home costs a measurement next time, nothing else
            write_atomically(cache_folder() / _FILE, msgspec.json.encode(table | {key: kept}))
    return Limits(kept.isa, kept.read, kept.peak, kept.caches), kept.rates


def kept_limits(machine: Machine, threads: int) -> Limits | None:
    """The kept figures as ``known_limits`` gives them; None where nothing was measured. Measures nothing."""
    try:
        from spola.backends.native import instruction_sets
    except ImportError:
        return None
    kept = _read().get(_key(machine, threads, instruction_sets().chosen, precise=False))
    return None if kept is None else Limits(kept.isa, kept.read, kept.peak, kept.caches)


def _key(machine: Machine, threads: int, isa: str, *, precise: bool) -> str:
    return f"{machine.key}|{threads}|{isa}|{'a16' if precise else 'a8'}"


def _read() -> dict[str, _Kept]:
    try:
        return msgspec.json.decode((cache_folder() / _FILE).read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.DecodeError):
        return {}


@contextmanager
def bench_lock() -> Iterator[float]:
    """Waits until no other benchmark runs on this machine; gives the load average found then."""
    path = Path(tempfile.gettempdir()) / f"spola-bench-{os.getuid()}.lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield os.getloadavg()[0]
