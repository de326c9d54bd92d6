"""Memory read bandwidth of this machine, measured once and kept in the user's cache.

The reading is the native backend's, over a buffer larger than any cache, with as many threads as the model
has. Never run before an answer is out.
"""

from __future__ import annotations

import os

import msgspec

from spola.core.errors import CapacityError
from spola.load.cache import cache_folder, write_atomically
from spola.runtime.machine import Machine

__all__ = ["cached", "measure", "read_bandwidth"]

MIN_BUFFER = 512 << 20
PASSES = 5
_FILE = "bandwidth.json"


def read_bandwidth(machine: Machine, threads: int, arena: int = 0, at_least: float = 0.0) -> float | None:
    """Bytes per second: the kept figure of this machine and thread count, else measured now and kept.

    A kept figure below ``at_least``, which was seen to be reached, is not believed.

    None when it cannot be measured, or there is no memory to spare for ``arena`` bytes, at least 512 MB.
    """
    known = cached(machine, threads)
    if known is not None and known >= at_least:
        return known
    size = max(arena, MIN_BUFFER)
    if size > machine.memory_available // 2:
        return None
    value = measure(size, threads)
    if (
        value is not None and os.getloadavg()[0] <= machine.cpus + 1
    ):  # a figure from a busy machine is too low to be kept
        _keep(machine, threads, value)
    return value


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
    try:
        table = msgspec.json.decode((cache_folder() / _FILE).read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError):
        return None
    value = table.get(_key(machine, threads), 0.0)
    return value if value > 0 else None


def _keep(machine: Machine, threads: int, value: float) -> None:
    path = cache_folder() / _FILE
    try:
        table = msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError):
        table = {}
    table[_key(machine, threads)] = value
    try:
        write_atomically(path, msgspec.json.encode(table))
    except OSError:
        return  # a read-only home costs a measurement next time, nothing else


def _key(machine: Machine, threads: int) -> str:
    return f"{machine.key}|{threads}"
