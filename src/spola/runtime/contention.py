"""How much of this process's processors others took while something was measured.

Others are programs, and the hypervisor, which gives the processors of a virtual machine to its neighbours. A
figure that was measured beside them is too low and does not show it, so they are noted with it. Reads the
system's table of processor times; where there is none, nothing is known and nothing counts as taken.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Contention", "believed", "is_quiet", "watch"]

_TRIES = 5  # measurements beside others before the best of them is believed, until a moment is found without
_GLANCE_S = 0.1
_LEAST = 0.15  # processors: what the system itself takes, and the steps in which times are counted
_SHARE = 0.05  # of all processors
_IDLE, _STEAL = (3, 4), 8  # columns: idle and waiting for a disk; up to and with what the hypervisor took


@dataclass(slots=True)
class Contention:
    """``others``: processors that others took, on average, once the watch is over."""

    others: float = 0.0


def is_quiet(others: float) -> bool:
    """Whether ``others`` processors are so few that they change no figure."""
    return others <= max(_LEAST, _SHARE * (os.cpu_count() or 1))


def believed(others: float, tries: int) -> bool:
    """Whether to take a figure as it is that ``tries`` measurements gave beside ``others`` processors' work:
    others have not been seen, or have not stopped yet.
    """
    return is_quiet(others) or (tries >= _TRIES and not is_quiet_now())


def is_quiet_now() -> bool:
    """Whether the processors are left to this process for a tenth of a second, in which it sleeps."""
    with watch() as seen:
        time.sleep(_GLANCE_S)
    return is_quiet(seen.others)


@contextmanager
def watch(root: Path = Path("/")) -> Iterator[Contention]:
    """Watch the processors that this process may use. ``root`` replaces the real one in tests."""
    found = Contention()
    busy, own, start = _busy_s(root), time.process_time(), time.perf_counter()
    yield found
    taken = _busy_s(root) - busy - (time.process_time() - own)
    found.others = max(0.0, taken / max(time.perf_counter() - start, 1e-9))


def _busy_s(root: Path) -> float:
    """Seconds that the processors of this process were not idle since the system started.

    Of proc(5): the columns of /proc/stat are user, nice, system, idle, iowait, irq, softirq and steal.
    """
    mine = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    ticks = 0
    try:
        for line in (root / "proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name in mine:
                ticks += sum(int(n) for at, n in enumerate(fields[:_STEAL]) if at not in _IDLE)
    except (OSError, ValueError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")
