"""Limits of the machine that are kept between runs: what other work made too low is measured again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.load.cache import cache_folder
from spola.runtime import contention, limits
from spola.runtime.contention import Contention, is_quiet, watch
from spola.runtime.limits import MachineLimits, kept_limits, known_limits
from spola.runtime.machine import Machine, probe

QUIET = MachineLimits("any", 2e10, {"f32": 1e10, "a8": 4e10, "a16": 2e10}, {32 << 20: 5e10}, 0.0)
BUSY = MachineLimits("any", 5e9, {"f32": 2e10, "a8": 1e10, "a16": 1e10}, {32 << 20: 1e10}, 1.5)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MachineLimits]:
    """What the next measurements find, first to last."""
    coming: list[MachineLimits] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(limits, "measure_limits", lambda threads: coming.pop(0))
    monkeypatch.setattr(
        limits, "measure_rates", lambda types, precise: {name: {8: 1e9, 64: 2e9} for name in types}
    )
    return coming


@pytest.fixture
def machine() -> Machine:
    return replace(probe(), memory_available=8 << 30)


def test_quiet_figures_are_measured_once(found: list[MachineLimits], machine: Machine) -> None:
    found += [QUIET]
    for types in ((), ("Q4_0",), ("Q4_0", "Q8_0")):
        known, rates = known_limits(machine, 2, types)
        assert known == QUIET
        assert set(rates) == set(types)
    assert kept_limits(machine, 2) == QUIET


def test_figures_beside_other_work_are_measured_again_and_only_rise(
    found: list[MachineLimits], machine: Machine
) -> None:
    found += [BUSY, QUIET]
    assert known_limits(machine, 2)[0] == BUSY
    known = known_limits(machine, 2)[0]
    assert known == replace(QUIET, peak={"f32": 2e10, "a8": 4e10, "a16": 2e10})
    assert known_limits(machine, 2)[0] == known
    assert not found


def test_others_that_never_stop_do_not_make_it_measure_for_ever(
    found: list[MachineLimits], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found += [BUSY] * 6
    monkeypatch.setattr(contention, "is_quiet_now", lambda: False)
    for _ in range(8):
        known_limits(machine, 2)
    assert len(found) == 1
    monkeypatch.setattr(contention, "is_quiet_now", lambda: True)
    found[:] = [QUIET]
    assert known_limits(machine, 2)[0].read == QUIET.read


def test_measuring_anew_beside_other_work_does_not_lower_a_figure(
    found: list[MachineLimits], machine: Machine
) -> None:
    found += [QUIET, replace(BUSY, peak=QUIET.peak), replace(QUIET, read=1e10)]
    known_limits(machine, 2)
    assert known_limits(machine, 2, fresh=True)[0] == QUIET
    assert known_limits(machine, 2, fresh=True)[0].read == 1e10


def test_figures_of_another_build_do_not_hold(
    found: list[MachineLimits], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found += [QUIET, replace(QUIET, read=3e10)]
    known_limits(machine, 2)
    monkeypatch.setattr("spola.backends.native.native_build", lambda: "another")
    assert known_limits(machine, 2)[0].read == 3e10
    assert len(json.loads((cache_folder() / "limits.json").read_bytes())) == 2


def test_rounds_beside_other_work_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0])
    reads = iter([1e9, 5e9, 6e9, 2e9, 7e9, 8e9, 9e9])

    @contextmanager
    def seen() -> Iterator[Contention]:
        yield Contention(next(taken))

    monkeypatch.setattr(limits, "watch", seen)
    monkeypatch.setattr(
        "spola.backends.native.measure_read_bandwidth",
        lambda size, threads, passes: next(reads) if passes == 1 else 1e10,
    )
    monkeypatch.setattr("spola.backends.native.measure_peak", lambda kind, threads: 1e10)
    known = limits.measure_limits(2)
    assert (known.read, known.others) == (7e9, 0.0)
    assert next(taken, None) is None


def test_passes_beside_other_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds are made however long they take; no further one begins after a while."""
    rounds = []

    def busy(threads: int, size: int) -> SimpleNamespace:
        rounds.append(threads)
        return SimpleNamespace(read=1e9, caches={}, peak={"f32": 1e10}, others=2.0)

    monkeypatch.setattr(limits, "_round", busy)
    assert limits.measure_limits(2).others == 2.0
    assert len(rounds) == limits.MOST_PASSES
    monkeypatch.setattr(limits, "ENOUGH_S", 0.0)
    limits.measure_limits(2)
    assert len(rounds) == limits.MOST_PASSES + limits.PASSES


def test_who_waits_is_told(found: list[MachineLimits], machine: Machine) -> None:
    found += [QUIET]
    said: list[str] = []
    known_limits(machine, 2, say=said.append)
    known_limits(machine, 2, say=said.append)
    assert said == ["measuring this machine, for some seconds; the figures are kept"]


def stat(root: Path, cpu: int, user: int, idle: int, steal: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    text = (
        f"cpu  0 0 0 0 0 0 0 0\ncpu{cpu} {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu9999 {user} 0 0 0 0 0 0 0\n"
    )
    (root / "proc/stat").write_text(text)


def test_what_others_take_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0])
    clock = SimpleNamespace(perf_counter=lambda: next(times), process_time=lambda: 0.0)
    system = SimpleNamespace(sched_getaffinity=lambda pid: {3}, sysconf=lambda name: 100, cpu_count=lambda: 2)
    monkeypatch.setattr(contention, "time", clock)
    monkeypatch.setattr(contention, "os", system)
    stat(tmp_path, 3, user=100, idle=0, steal=50)
    with watch(tmp_path) as found:
        stat(tmp_path, 3, user=400, idle=500, steal=250)
    assert found.others == pytest.approx(0.5)
    assert not is_quiet(found.others)


def test_a_sleeping_process_sees_what_is_busy_now(monkeypatch: pytest.MonkeyPatch) -> None:
    for taken, quiet in ((0.0, True), (1.0, False)):
        monkeypatch.setattr(contention, "watch", lambda taken=taken: nullcontext(Contention(taken)))
        assert contention.is_quiet_now() is quiet


def test_without_a_table_of_times_nothing_counts_as_taken(tmp_path: Path) -> None:
    with watch(tmp_path) as found:
        pass
    assert found.others == 0.0
