"""Machine and control groups, read from a made-up root."""

from __future__ import annotations

from pathlib import Path

import pytest

from spola.runtime.cgroup import cpu_quota, memory_limit, memory_used
from spola.runtime.machine import describe_bytes, probe

GB = 1 << 30


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "proc/meminfo", f"MemTotal: {16 * GB // 1024} kB\nMemAvailable: {12 * GB // 1024} kB\n")
    put(tmp_path, "proc/cpuinfo", "processor : 0\nmodel name : Test CPU\n")
    return tmp_path


def siblings(root: Path, pairs: list[tuple[int, ...]]) -> None:
    for group in pairs:
        for cpu in group:
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
            put(root, f"{folder}/thread_siblings_list", ",".join(map(str, group)))


def test_no_groups_no_limits(root: Path) -> None:
    machine = probe(root, {0, 1, 2})
    assert (machine.threads, machine.quota) == (3, None)
    assert machine.memory_limit == 16 * GB
    assert machine.memory_available == 12 * GB
    assert machine.cpu_model == "Test CPU"


def test_arm_processors_have_numbers_for_names(root: Path) -> None:
    put(root, "proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n\nprocessor : 1\n")
    assert probe(root, {0}).cpu_model.endswith("implementer 0x41 part 0xd0c")


def test_one_thread_per_core_but_both_of_a_lone_core(root: Path) -> None:
    siblings(root, [(0, 4), (1, 5), (2, 6), (3, 7)])
    many = probe(root, set(range(8)))
    assert (many.cpus, many.cores, many.threads) == (8, 4, 4)
    assert "4 physical cores" in many.threads_reason
    assert probe(root, {0, 4}).threads == 2
    # Affinity to one hyperthread of each core leaves every core.
    assert probe(root, {0, 1, 2}).threads == 3


def test_v2_quota_is_the_smallest_on_the_path(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/a/b\n")
    put(root, "sys/fs/cgroup/cpu.max", "max 100000\n")
    put(root, "sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    put(root, "sys/fs/cgroup/a/b/cpu.max", "400000 100000\n")
    assert cpu_quota(root) == 2.5
    machine = probe(root, set(range(8)))
    assert machine.threads == 2
    assert "2.5" in machine.threads_reason


def test_a_quota_below_one_still_gives_a_thread(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/\n")
    put(root, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert probe(root, {0, 1}).threads == 1


def test_v1_groups(root: Path) -> None:
    put(root, "proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "300000\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", f"{4 * GB}\n")
    put(root, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", f"{3 * GB}\n")
    put(root, "sys/fs/cgroup/memory/box/memory.stat", f"cache 5\ntotal_inactive_file {GB}\n")
    assert cpu_quota(root) == 3.0
    assert memory_limit(root) == 4 * GB
    assert memory_used(root) == 2 * GB
    machine = probe(root, set(range(8)))
    assert machine.memory_limit == 4 * GB
    assert machine.memory_available == 2 * GB
    assert machine.memory_limit_reason == "control group limit"


def test_v1_unlimited_quota_is_none(root: Path) -> None:
    put(root, "proc/self/cgroup", "2:cpu:/\n")
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(root) is None


def test_v2_memory_inside_a_container_whose_path_only_the_host_sees(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/docker/0123\n")
    put(root, "sys/fs/cgroup/memory.max", f"{2 * GB}\n")
    put(root, "sys/fs/cgroup/memory.current", f"{GB}\n")
    assert memory_limit(root) == 2 * GB
    assert probe(root, {0}).memory_available == GB


def test_the_real_machine_has_threads_and_memory() -> None:
    machine = probe()
    assert 1 <= machine.threads <= machine.cpus
    assert 0 < machine.memory_available <= machine.memory_limit <= machine.memory_total


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (98_400_000, "98.4 MB"), (3.2e9, "3.2 GB")])
def test_sizes_for_people(count: float, text: str) -> None:
    assert describe_bytes(count) == text
