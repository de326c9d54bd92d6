"""This machine's limits: memory reads, multiply-adds by kind, and what the linear kernels make of them.

``measure_limits`` measures now; ``known_limits`` takes figures kept from an earlier time where they hold.
Other work on the machine only ever lowers a figure: it is noted with what was measured beside it, and such a
figure is measured again and replaced by a higher one.
"""

from __future__ import annotations

import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from spola.core.errors import CapacityError, ConfigError
from spola.load.cache import cache_folder, write_atomically
from spola.runtime.contention import believed, is_quiet, watch
from spola.runtime.machine import Machine

__all__ = [
    "KernelRates",
    "MachineLimits",
    "Say",
    "bench_lock",
    "kept_limits",
    "known_limits",
    "machine_key",
    "measure_limits",
    "measure_rates",
]

PASSES = 5
MOST_PASSES = 15  # while others take the processors, until there are five without
ENOUGH_S = 10.0  # of passes; five are made all the same
LEAST_BUFFER = 512 << 20
SMALL_MB = (32, 64, 128, 256)  # buffers that may fit into a cache
SIDE = 2048  # rows and columns of the matrix that kernels are timed on: in cache, so that arithmetic counts
ROWS = (8, 64)
_FILE = "limits.json"
_RECORDS = 15  # records of other builds, processors and numbers of threads


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """``read`` in bytes per second; the others in multiply-adds per second, by activation format.

    ``caches``: bytes per second over smaller buffers, by their size: a model that fits into the caches is
    read faster than memory is. ``others``: processors that other work took meanwhile.
    """

    isa: str
    read: float
    peak: dict[str, float]
    caches: dict[int, float] = field(default_factory=dict)
    others: float = 0.0

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
            "others": self.others,
        }


Key = TypeVar("Key", bound=Hashable)

# Where a line for the person goes who waits.
Say = Callable[[str], None]

# Weight type -> activation rows of a call -> multiply-adds per second of one thread.
KernelRates = Mapping[str, Mapping[int, float]]


class _Kept(msgspec.Struct):
    isa: str
    read: float
    peak: dict[str, float]
    caches: dict[int, float] = {}
    rates: dict[str, dict[int, float]] = {}
    others: float = 0.0
    tries: int = 1

    def limits(self) -> MachineLimits:
        return MachineLimits(self.isa, self.read, self.peak, self.caches, self.others)


@dataclass(frozen=True, slots=True)
class _Round:
    read: float
    caches: dict[int, float]
    peak: dict[str, float]
    others: float


def measure_limits(threads: int, buffer_bytes: int = 0) -> MachineLimits:
    """Five passes of each, interleaved, with ``threads`` threads: median of reads, best of arithmetic.

    Passes beside other work are repeated, up to fifteen in all and for ten seconds; the five with the least
    of it count.
    Reads go over ``buffer_bytes`` bytes, at least 512 MB. Raises ConfigError without the native backend.
    """
    try:
        from spola.backends.native import instruction_sets
    except ImportError:
        raise ConfigError("the native backend is not built here, and it measures the machine") from None
    size = max(buffer_bytes, LEAST_BUFFER)
    rounds: list[_Round] = []
    end = time.monotonic() + ENOUGH_S
    while len(rounds) < PASSES or (
        len(rounds) < MOST_PASSES
        and time.monotonic() < end
        and sum(is_quiet(one.others) for one in rounds) < PASSES
    ):
        rounds.append(_round(threads, size))
    rounds = sorted(rounds, key=lambda one: one.others)[:PASSES]
    return MachineLimits(
        instruction_sets().chosen,
        statistics.median(one.read for one in rounds),
        {kind: max(one.peak[kind] for one in rounds) for kind in rounds[0].peak},
        {size: statistics.median(one.caches[size] for one in rounds) for size in rounds[0].caches},
        max(one.others for one in rounds),
    )


def _round(threads: int, size: int) -> _Round:
    from spola.backends.native import measure_peak, measure_read_bandwidth

    with watch() as seen:
        read = measure_read_bandwidth(size, threads, 1)
        small = {mb << 20: measure_read_bandwidth(mb << 20, threads, PASSES) for mb in SMALL_MB}
        peak = {kind: measure_peak(kind, threads) for kind in ("f32", "a8", "a16")}
    return _Round(read, small, peak, seen.others)


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
    machine: Machine,
    threads: int,
    types: Iterable[str] = (),
    *,
    precise: bool = False,
    fresh: bool = False,
    say: Say = lambda _: None,
) -> tuple[MachineLimits, KernelRates]:
    """The kept figures of this machine and thread count, and what is missing measured now (``fresh``: all).

    What was measured beside other work is measured again, a few times at most, and the higher figure is kept.
    ``say`` is told when it takes a while.
    Raises ConfigError without the native backend, CapacityError where there is no memory for the buffer.
    """
    key, table = machine_key(machine, threads, precise=precise), _read()
    kept = table.get(key)
    room = machine.memory_available // 2 >= LEAST_BUFFER
    if kept is None and not room:
        raise CapacityError(
            f"measuring the memory takes a buffer of {LEAST_BUFFER >> 20} MB, and half of the "
            f"{machine.memory_available >> 20} MB that are free is less: name the machine with --hardware"
        )
    again = kept is None or (room and (fresh or not believed(kept.others, kept.tries)))
    if kept is None or again:
        say("measuring this machine, for some seconds; the figures are kept")
        kept = _joined(kept, measure_limits(threads), fresh=fresh)
    missing = sorted(set(types) if again else set(types) - kept.rates.keys())
    for name, rates in (measure_rates(missing, precise=precise) if missing else {}).items():
        kept.rates[name] = _highest(kept.rates.get(name, {}), rates)
    if again or missing:
        rest = dict([pair for pair in table.items() if pair[0] != key][-_RECORDS:])
        with suppress(OSError):  # a read-only home costs a measurement next time, nothing else
            write_atomically(cache_folder() / _FILE, msgspec.json.encode(rest | {key: kept}))
    return kept.limits(), kept.rates


def kept_limits(machine: Machine, threads: int) -> MachineLimits | None:
    """The kept figures as ``known_limits`` gives them; None where nothing was measured. Measures nothing."""
    try:
        kept = _read().get(machine_key(machine, threads, precise=False))
    except ConfigError:
        return None
    return None if kept is None else kept.limits()


def _joined(kept: _Kept | None, found: MachineLimits, *, fresh: bool) -> _Kept:
    """What to keep: ``found`` alone if it is quiet and nothing older is wanted, else the higher figures."""
    quiet = is_quiet(found.others)
    if kept is None or (fresh and quiet):
        return _Kept(found.isa, found.read, found.peak, found.caches, {}, found.others)
    return _Kept(
        found.isa,
        max(kept.read, found.read),
        _highest(kept.peak, found.peak),
        _highest(kept.caches, found.caches),
        {} if quiet else kept.rates,
        min(kept.others, found.others),
        kept.tries + 1,
    )


def _highest(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in {**one, **other}}


def machine_key(machine: Machine, threads: int, *, precise: bool) -> str:
    """Names the machine and the build whose kernels were measured on it."""
    try:
        from spola.backends.native import instruction_sets, native_build
    except ImportError:
        raise ConfigError("the native backend is not built here, and it measures the machine") from None
    isa = instruction_sets().chosen
    return f"{machine.key}|{threads}|{isa}|{'a16' if precise else 'a8'}|{native_build()}"


def _read() -> dict[str, _Kept]:
    try:
        return msgspec.json.decode((cache_folder() / _FILE).read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.DecodeError):
        return {}


@contextmanager
def bench_lock(say: Say = lambda _: None) -> Iterator[float]:
    """Waits until no other benchmark runs on this machine; gives the load average found then.

    ``say`` is told that it waits, and what was found.
    """
    path = Path(tempfile.gettempdir()) / f"spola-bench-{os.getuid()}.lock"
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another benchmark runs on this machine: waiting for its end")
            fcntl.flock(file, fcntl.LOCK_EX)
        load = os.getloadavg()[0]
        say(f"load average {load:.2f}")
        yield load
