"""Figures kept between runs: believed while they can be true, measured again otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from spola.load.cache import cache_folder, write_atomically
from spola.runtime import bandwidth, contention
from spola.runtime.contention import Contention
from spola.runtime.machine import probe


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that were measured; every measurement gives 10 GB/s on an idle machine."""
    calls: list[int] = []

    def measure(size: int, threads: int, passes: int = 5) -> float:
        calls.append(size)
        return 1e10

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bandwidth, "measure", measure)
    monkeypatch.setattr(bandwidth, "watch", others(0.0))
    return calls


def others(processors: float) -> Callable[[], AbstractContextManager[Contention]]:
    """A watch that finds so many processors taken by others."""
    return lambda: nullcontext(Contention(processors))


def test_a_figure_is_measured_once_for_each_number_of_threads(measured: list[int]) -> None:
    machine = probe()
    for threads in (1, 1, 2, 2):
        assert bandwidth.read_bandwidth(machine, threads) == 1e10
    assert measured == [bandwidth.MIN_BUFFER] * 2
    assert bandwidth.cached(machine, 3) is None


def test_a_figure_that_was_exceeded_is_measured_again(measured: list[int]) -> None:
    machine = probe()
    bandwidth.read_bandwidth(machine, 2)
    bandwidth.read_bandwidth(machine, 2, at_least=0.9e10)
    assert len(measured) == 1
    bandwidth.read_bandwidth(machine, 2, at_least=1.1e10)
    assert len(measured) == 2


def test_a_figure_beside_other_work_is_measured_again(
    measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = probe()
    monkeypatch.setattr(bandwidth, "watch", others(1.5))
    monkeypatch.setattr(bandwidth, "measure", lambda size, threads: 3e9)
    assert bandwidth.read_bandwidth(machine, 2) == bandwidth.cached(machine, 2) == 3e9
    monkeypatch.setattr(bandwidth, "watch", others(0.0))
    monkeypatch.setattr(bandwidth, "measure", lambda size, threads: 1e10)
    assert bandwidth.read_bandwidth(machine, 2) == 1e10
    monkeypatch.setattr(bandwidth, "measure", lambda size, threads: 2e10)
    assert bandwidth.read_bandwidth(machine, 2) == 1e10


def test_others_that_never_stop_do_not_make_it_measure_for_ever(
    measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = probe()
    monkeypatch.setattr(bandwidth, "watch", others(1.5))
    monkeypatch.setattr(contention, "is_quiet_now", lambda: False)
    rates = iter([3e9, 5e9, 4e9, 2e9, 1e9, 9e9])
    monkeypatch.setattr(bandwidth, "measure", lambda size, threads: next(rates))
    assert [bandwidth.read_bandwidth(machine, 2) for _ in range(7)] == [3e9, 5e9, 5e9, 5e9, 5e9, 5e9, 5e9]
    assert next(rates) == 9e9


def test_a_buffer_larger_than_memory_is_not_tried(measured: list[int]) -> None:
    assert bandwidth.read_bandwidth(probe(), 2, arena=1 << 50) is None
    assert measured == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": "b"}'])
def test_a_broken_cache_is_written_anew(measured: list[int], content: bytes) -> None:
    write_atomically(cache_folder() / "bandwidth.json", content)
    machine = probe()
    assert bandwidth.read_bandwidth(machine, 2) == 1e10
    assert bandwidth.cached(machine, 2) == 1e10
