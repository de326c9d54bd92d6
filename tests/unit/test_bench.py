"""Benchmarks: what is measured, and what a figure is compared with. No test looks at a time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spola.bench.offline import Offline, Plan
from spola.core.step import Step, StepOutput
from spola.runtime import limits as limits_module
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.limits import MachineLimits, bench_lock
from spola.runtime.loaded import Loaded
from support.cli import spola
from support.service import tiny_file

FAST = MachineLimits("scalar", 1e15, {"f32": 1e18, "a8": 1e18, "a16": 1e18})


@pytest.fixture
def steps() -> list[Step]:
    return []


@pytest.fixture
def loaded(tmp_path: Path, steps: list[Step]) -> Loaded:
    def record(step: Step, output: StepOutput) -> None:
        steps.append(step)

    loaded = load_engine(
        str(tiny_file(tmp_path)), Options(backend="null", max_model_len=128, max_seqs=4), record=record
    )
    yield loaded
    loaded.engine.close()


def rows_of(step: Step) -> list[int]:
    return [len(piece.ids) // 4 for piece in step.slices]


def test_offline_runs_what_it_reports(loaded: Loaded, steps: list[Step]) -> None:
    plan = Plan(prompt=50, tokens=6, batches=(1, 3), depth=20, repeat=2)
    result = Offline(loaded, FAST).run(plan)
    assert result["prefill"]["tokens"] == 50
    assert [(row["batch"], row["depth"]) for row in result["decode"]] == [(1, 20), (3, 20)]
    for row in (result["prefill"], *result["decode"]):
        assert 0 < row["tok_s_min"] <= row["tok_s"] <= row["tok_s_max"]
        assert 0 < row["roofline"] < 1
    assert set(result["machine"]) == {"read_gb_s", "int8_gops", "int16_gops", "f32_gflops", "others"}
    shapes = Counter(tuple(rows_of(step)) for step in steps)
    assert shapes[(50,)] == 2 + 1  # two runs and the one that warms up
    assert shapes[(1,)] >= 2 * 6
    assert shapes[(1, 1, 1)] >= 2 * 6
    assert shapes[(20, 20, 20)] == 2


def test_without_a_cache_every_token_computes_the_whole_text(loaded: Loaded, steps: list[Step]) -> None:
    Offline(loaded, FAST).run(Plan(prompt=8, tokens=3, batches=(2,), depth=10, repeat=1, kv_cache=False))
    assert [rows_of(step) for step in steps[-3:]] == [[11, 11], [12, 12], [13, 13]]


def test_the_roofline_is_the_slower_of_memory_and_arithmetic(loaded: Loaded) -> None:
    plan = Plan(prompt=50, tokens=2, batches=(1,), repeat=1)
    slow_memory = Offline(loaded, MachineLimits("scalar", 1e3, FAST.peak))
    moved = slow_memory._least(50) * 1e3
    weights = slow_memory.run(plan)["weights_bytes"]
    assert weights < moved <= weights + 50 * loaded.config.kv_bytes_per_token
    arithmetic = Offline(loaded, MachineLimits("scalar", 1e15, {"f32": 1e18, "a8": 1e3, "a16": 1e18}))
    assert arithmetic._least(100) == pytest.approx(2 * arithmetic._least(50), rel=0.35)
    # The embedding is the head too, and computed for one row only.
    spec = loaded.spec
    layers = spec.layers[0]
    assert layers is not None
    assert arithmetic._least(50) > 50 * spec.hidden * spec.hidden / 1e3


def test_json_and_the_error_above_the_roofline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spola.cli import bench

    path = str(tiny_file(tmp_path))
    args = (
        "bench",
        "offline",
        "-m",
        path,
        "--backend",
        "null",
        "-p",
        "8",
        "-n",
        "2",
        "-b",
        "1",
        "--repeat",
        "1",
    )
    monkeypatch.setattr(bench, "measure_limits", lambda threads, size: FAST)
    done = spola(*args, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["decode"][0]["batch"] == 1
    slow = MachineLimits("scalar", 1.0, {"f32": 1.0, "a8": 1.0, "a16": 1.0})
    monkeypatch.setattr(bench, "measure_limits", lambda threads, size: slow)
    done = spola(*args)
    assert done.returncode == 1
    assert "roofline" in done.stdout
    assert "run again" in done.stderr
    assert "other work" not in done.stderr
    monkeypatch.setattr(bench, "measure_limits", lambda threads, size: replace(FAST, others=1.2))
    assert "other work took 1.2 processors" in spola(*args).stderr
    assert spola("bench", "offline", "-b", "1,x").returncode == 2
    assert spola("bench", "kernels", "--type", "Q9_9").returncode == 2


def test_one_benchmark_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(limits_module.tempfile, "gettempdir", lambda: str(tmp_path))
    with bench_lock() as load:
        assert load >= 0
        (lock,) = tmp_path.iterdir()
        with lock.open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    said: list[str] = []
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def say(line: str) -> None:
            said.append(line)
            fcntl.flock(other, fcntl.LOCK_UN)

        with bench_lock(say):
            assert [line.partition(" ")[0] for line in said] == ["another", "load"]
