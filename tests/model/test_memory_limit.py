"""A server under a memory limit, at its planned maximum: nothing is killed, nothing fails."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.bench.http import Target
from spola.bench.serve import Load, calls_of, drive
from spola.load.resolve import embedded_model
from spola.workload import mix
from support.cli import spola
from support.served import served
from support.waiting import PATIENCE_S

LIMIT = 320 << 20
CONTEXT = 256
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@contextmanager
def memory_group() -> Iterator[Path | None]:
    """A control group with the limit and no swap, or None where none can be made."""
    v2 = (V2 / "cgroup.controllers").exists()
    folder = (V2 if v2 else V1) / f"spola-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
    except OSError:
        folder.rmdir()
        yield None
        return
    try:
        yield folder
    finally:
        folder.rmdir()


def kills(group: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        if (group / name).exists():
            for line in (group / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def swapped(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in status if line.startswith("VmSwap:")), 0)


def test_at_the_planned_maximum_nothing_is_killed() -> None:
    if embedded_model() is None:
        pytest.skip("smollm2 is not here")
    figures = json.loads(
        spola("plan", "smollm2", "--memory", str(LIMIT), "--context", str(CONTEXT), "--json").stdout
    )
    seqs = figures["max_concurrency"]
    assert 2 <= seqs <= 32
    with memory_group() as group:
        if group is None:
            print("control groups cannot be written here: an address space limit takes their place")
            under: Callable[[], object] = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # noqa: E731
        else:
            under = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        kv = seqs * figures["kv_bytes_per_request"]
        limits = ["--max-model-len", str(CONTEXT), "--max-seqs", str(seqs), "--kv-memory", str(kv)]
        with served("-m", "smollm2", *limits, preexec_fn=under) as (server, document):
            items = mix("random", 2 * seqs, prompt=CONTEXT - 30, output=24)
            calls = calls_of(items, document["model"], endpoint="completions", vocab=1000)
            outcome = asyncio.run(drive(Target(document["url"]), calls, Load(concurrency=seqs, warmup=0)))
            assert [sample.error for sample in outcome.samples if sample.error] == []
            assert server.poll() is None
            assert swapped(server.pid) == 0
        if group is not None:
            assert kills(group) == 0


def test_what_cannot_fit_under_the_limit_is_refused_before_loading() -> None:
    with memory_group() as group:
        if group is None:
            pytest.skip("control groups cannot be written here")
        under = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        command = [sys.executable, "-m", "spola", "serve", "-m", "smollm2", "--port", "0"]
        command += ["--max-model-len", "8192", "--max-seqs", "8", "--kv-memory", "1G"]
        done = subprocess.run(command, preexec_fn=under, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 1
        assert "Three ways out" in done.stderr
        assert done.stderr.count("\n") <= 2
