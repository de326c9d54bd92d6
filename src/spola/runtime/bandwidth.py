"""Memory read bandwidth of this machine, measured once and kept in the user's cache.

Reads with the C library's ``memchr`` (through ctypes, which releases the interpreter lock), one part of
the buffer per thread, over a buffer larger than any cache. Never run before an answer is out.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from spola.load.cache import cache_folder, write_atomically
from spola.runtime.machine import Machine

__all__ = ["cached", "measure", "read_bandwidth"]

MIN_BUFFER = 512 << 20
PASSES = 5
_FILE = "bandwidth.json"


def read_bandwidth(machine: Machine, threads: int, arena: int = 0) -> float | None:
    """Bytes per second: the kept figure of this machine and thread count, else measured now and kept.

    None when the machine has no memory to spare for the buffer (``arena`` bytes, at least 512 MB).
    """
    known = cached(machine, threads)
    if known is not None:
        return known
    size = max(arena, MIN_BUFFER)
    if size > machine.memory_available // 2:
        return None
    value = measure(size, threads)
    if os.getloadavg()[0] <= machine.cpus + 1:  # a figure from a busy machine is too low to be kept
        _keep(machine, threads, value)
    return value


def measure(size: int, threads: int, passes: int = PASSES) -> float:
    """Median over ``passes`` of bytes read per second from a buffer of ``size`` bytes by ``threads``."""
    libc = ctypes.CDLL(None)
    libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.memchr.restype = ctypes.c_void_p
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    part = size // threads // 4096 * 4096
    with mmap.mmap(-1, part * threads) as buffer, ThreadPoolExecutor(threads) as pool:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            buffer.madvise(mmap.MADV_HUGEPAGE)
        anchor = ctypes.c_char.from_buffer(buffer)
        try:
            parts = [ctypes.addressof(anchor) + index * part for index in range(threads)]
            # Untouched pages all map to one page of zeros: they must be written before they are read.
            list(pool.map(lambda address: libc.memset(address, 1, part), parts))
            rates = []
            for _ in range(passes):
                start = time.perf_counter()
                list(pool.map(lambda address: libc.memchr(address, 2, part), parts))
                rates.append(part * threads / (time.perf_counter() - start))
        finally:
            del anchor
    return statistics.median(rates)


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
