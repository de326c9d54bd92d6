"""Limits that Linux control groups set on this process: CPU quota and memory, versions 1 and 2.

Reads the files under ``/proc`` and ``/sys`` only. A machine without control groups has no limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "memory_limit", "memory_used"]

_NO_LIMIT = 1 << 60  # version 1 writes a huge number where there is no limit


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time this process may use, the smallest quota on its path; None without one."""
    quotas = []
    for folder in _folders(root, "cpu"):
        quota = _v2_quota(folder) or _v1_quota(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes this process's groups may use, the smallest limit on its path; None without one."""
    limits = []
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _number(folder / name)
            if value is not None and value < _NO_LIMIT:
                limits.append(value)
    return min(limits, default=None)


def memory_used(root: Path = Path("/")) -> int | None:
    """Bytes charged to the group that has the smallest limit, without file pages that can be dropped."""
    best: tuple[int, Path] | None = None
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _number(folder / name)
            if value is not None and value < _NO_LIMIT and (best is None or value < best[0]):
                best = (value, folder)
    if best is None:
        return None
    folder = best[1]
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    return max(0, used - _inactive_file(folder))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of its ancestors, for both versions, innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            tops = [base, base / "unified"]
        elif controller in names.split(","):
            tops = [base / names, base / controller]
        else:
            continue
        for top in tops:
            if top.is_dir():
                yield from _upwards(top, path)
                break


def _upwards(top: Path, path: str) -> Iterator[Path]:
    # Inside a container the path may name a folder that only the host sees; what exists is read.
    parts = [part for part in path.split("/") if part and part != ".."]
    for count in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:count])
        if folder.is_dir():
            yield folder


def _v2_quota(folder: Path) -> float | None:
    fields = _text(folder / "cpu.max").split()
    if len(fields) != 2 or not fields[0].isdigit() or not fields[1].isdigit() or fields[1] == "0":
        return None
    return int(fields[0]) / int(fields[1])


def _v1_quota(folder: Path) -> float | None:
    quota = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _inactive_file(folder: Path) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
