"""Memory read bandwidth of this machine, measured once and kept in the user's cache.

The reading is the native backend's, over a buffer larger than any cache, with as many threads as the model
has. Never run before an answer is out. A figure measured beside other work is measured again, a few times at
most, and the highest is kept.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from spola.core.errors import CapacityError
from spola.load.cache import cache_folder, write_atomically
from spola.runtime.contention import believed, watch
from spola.runtime.machine import Machine

__all__ = ["cached", "measure", "read_bandwidth"]

MIN_BUFFER = 512 << 20
PASSES = 5
_FILE = "bandwidth.json"


class _Kept(msgspec.Struct):
    """``read``: bytes per second; ``others``: processors that other work took meanwhile."""

    read: float
    others: float = 0.0
    tries: int = 1


def read_bandwidth(machine: Machine, threads: int, arena: int = 0, at_least: float = 0.0) -> float | None:
    """Bytes per second: the kept figure of this machine and thread count, else measured now and kept.

    A kept figure below ``at_least``, which was seen to be reached, is not believed.

    None when it cannot be measured, or there is no memory to spare for ``arena`` bytes, at least 512 MB.
    """
    table = _read()
    known = table.get(_key(machine, threads))
    if known is not None and known.read >= at_least and believed(known.others, known.tries):
        return known.read
    size = max(arena, MIN_BUFFER)
    if size > machine.memory_available // 2:
        return None
    with watch() as seen:
        value = measure(size, threads)
    if value is None:
        return None
    found = _Kept(value, seen.others)
    if known is not None:
        found = _Kept(max(value, known.read), min(seen.others, known.others), known.tries + 1)
    with suppress(OSError):  # a read-only home costs a measurement next time, nothing else
        write_atomically(cache_folder() / _FILE, msgspec.json.encode(table | {_key(machine, threads): found}))
    return found.read


def measure(size: int, threads: int, passes: int = PASSES) -> float | None:
    """Bytes per second that ``threads`` threads read from a buffer of ``size`` bytes: the median pass.

    None where the native code that reads is not built, or there is no memory for the buffer.
    """
    try:
        from spola.backends.native import measure_read_bandwidth
    except ImportError:
        return None
    try:
        return measure_read_bandwidth(size, threads, passes)
    except CapacityError:
        return None


def cached(machine: Machine, threads: int) -> float | None:
    """The figure kept for this machine and thread count, if there is one."""
    known = _read().get(_key(machine, threads))
    return None if known is None else known.read


def _read() -> dict[str, _Kept]:
    try:
        table = msgspec.json.decode((cache_folder() / _FILE).read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.DecodeError):
        return {}
    return {key: kept for key, kept in table.items() if kept.read > 0}


def _key(machine: Machine, threads: int) -> str:
    return f"{machine.key}|{threads}"
