"""What this machine grants the process: processors, threads to use and why, memory.

Reads the system's own tables only; measures nothing and starts nothing. Bandwidth is measured in
``runtime.bandwidth``.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from spola.runtime import cgroup

__all__ = ["Machine", "describe_bytes", "probe"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes. ``cores`` counts physical cores among the ``cpus`` this process may run on."""

    cpu_model: str
    cpus: int
    cores: int
    quota: float | None
    threads: int
    threads_reason: str
    memory_total: int
    memory_limit: int
    memory_limit_reason: str
    memory_available: int
    huge_pages: str

    @property
    def key(self) -> str:
        """Names this kind of machine, for figures kept between runs."""
        return f"{self.cpu_model}|{self.cpus}|{self.memory_total >> 30}"


def probe(root: Path = Path("/"), allowed: set[int] | None = None) -> Machine:
    """Look at the machine. ``root`` and ``allowed`` (CPU numbers) replace the real ones in tests."""
    cpus = _allowed_cpus() if allowed is None else allowed
    cores = _physical_cores(root, cpus)
    quota = cgroup.cpu_quota(root)
    threads, reason = _threads(len(cpus), cores, quota)
    total, free = _memory(root)
    limit, limit_reason = _limit(root, total)
    return Machine(
        cpu_model=_cpu_model(root),
        cpus=len(cpus),
        cores=cores,
        quota=quota,
        threads=threads,
        threads_reason=reason,
        memory_total=total,
        memory_limit=limit,
        memory_limit_reason=limit_reason,
        memory_available=_available(root, free, limit),
        huge_pages=_huge_pages(root),
    )


def describe_bytes(count: float) -> str:
    """``count`` bytes for a person: 98.4 MB, 3.2 GB (decimal units)."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def _threads(cpus: int, cores: int, quota: float | None) -> tuple[int, str]:
    """One thread per physical core, both threads of a lone core, and never more than the quota."""
    if cores < cpus and cores > 1:
        count, reason = cores, f"{cores} physical cores ({cpus} hardware threads)"
    else:
        count, reason = cpus, f"{cpus} processor{'s' if cpus > 1 else ''} may be used"
    if quota is not None and quota < count:
        count, reason = max(1, int(quota)), f"control group quota of {quota:.4g} processors"
    return count, reason


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical_cores(root: Path, cpus: set[int]) -> int:
    cores = set()
    for cpu in cpus:
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(path.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def _cpu_model(root: Path) -> str:
    table: dict[str, str] = {}
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            table.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    if named := table.get("model name") or table.get("Processor"):
        return named
    if "CPU implementer" in table and "CPU part" in table:  # arm64: numbers only
        return f"{platform.machine()} implementer {table['CPU implementer']} part {table['CPU part']}"
    return platform.processor() or platform.machine()


def _memory(root: Path) -> tuple[int, int]:
    """Total and available bytes of the machine."""
    table: dict[str, int] = {}
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            fields = rest.split()
            if fields and fields[0].isdigit():
                table[name] = int(fields[0]) * 1024
    except OSError:
        pass
    if "MemTotal" not in table:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    return table["MemTotal"], table.get("MemAvailable", table.get("MemFree", table["MemTotal"]))


def _limit(root: Path, total: int) -> tuple[int, str]:
    limit, reason = total, "memory of the machine"
    group = cgroup.memory_limit(root)
    if group is not None and group < limit:
        limit, reason = group, "control group limit"
    soft = _address_space(root)
    if soft is not None and soft < limit:
        limit, reason = soft, "address space limit (ulimit -v)"
    return limit, reason


def _available(root: Path, free: int, limit: int) -> int:
    used = cgroup.memory_used(root)
    if used is not None:
        group = cgroup.memory_limit(root)
        free = min(free, max(0, (group or limit) - used))
    soft = _address_space(root)
    if soft is not None:
        free = min(free, max(0, soft - _mapped()))
    return min(free, limit)


def _address_space(root: Path) -> int | None:
    """The process's own limit (ulimit -v), which a made-up root does not have."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if root != Path("/") or soft == resource.RLIM_INFINITY else soft


def _mapped() -> int:
    """Bytes of address space this process has now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _huge_pages(root: Path) -> str:
    """The mode of transparent huge pages: always, madvise, never, or unknown."""
    try:
        text = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown" if sys.platform.startswith("linux") else "not on this system"
    return text.partition("[")[2].partition("]")[0] or "unknown"
