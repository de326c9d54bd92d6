"""Threads, instruction sets and processes: equal bits from all of them, and every worker works."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.backends.native import NativeRunner, instruction_sets
from spola.core.errors import ConfigError
from spola.core.params import SamplingParams
from spola.core.step import StepOutput, decode_step, encode_step
from support.drive import Driver, Job, Outcome, greedy
from support.tiny import Tiny, TinyModel
from support.waiting import PATIENCE_S

TINY = Tiny(seed=21, layers=2, hidden=128, ff=256, heads=6, kv_heads=3, head_dim=16)
TOKENS = np.random.default_rng(6).integers(0, TINY.vocab, 700).tolist()
SAMPLED = SamplingParams(temperature=0.9, top_k=50, repetition_penalty=1.1, logprobs=3)
JOBS = [
    Job(TOKENS[:560], 5, greedy()),
    *(Job(TOKENS[i : i + n], 5, SAMPLED, seed=i) for i, n in enumerate((3, 64, 100, 31, 1, 257, 40))),
]


def load(**config) -> Driver:
    model = TinyModel(TINY)
    runner, settings = NativeRunner(), model.config(blocks=80, **config)
    runner.load(model.spec, model, settings)
    return Driver(runner, settings, TINY.vocab)


def bits(outcomes: list[Outcome]) -> list[tuple]:
    assert all(out.error is None for out in outcomes)
    return [(out.ids, out.logprobs) for out in outcomes]


@pytest.fixture(scope="module")
def alone() -> list[tuple]:
    return bits([load().alone(job) for job in JOBS])


@pytest.fixture(scope="module")
def alone_int8() -> list[tuple]:
    return bits([load(kv="int8").alone(job) for job in JOBS])


def test_decoders_of_a_process_share_their_threads(alone: list[tuple]) -> None:
    def threads() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/task"))

    first = load(threads=5)
    before = threads()
    second = load(threads=5)
    assert threads() == before
    with ThreadPoolExecutor(2) as callers:  # who comes second waits for the other's step
        got = list(callers.map(lambda driver: [driver.alone(job) for job in JOBS], (first, second)))
    assert bits(got[0]) == bits(got[1]) == alone


def until_all_worked(driver: Driver, names: tuple[str, ...], jobs: list[Job], alone: list[tuple]) -> None:
    """Run ``jobs`` until every worker has done work of every kind in ``names``; equal bits each time.

    A worker takes what there is when it comes, so one that the system starts late may find nothing.
    """
    start = driver.runner.counters()
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert bits(driver.run(jobs, 64)) == alone
        done = zip(start, driver.runner.counters(), strict=True)
        if all(new[name] > old[name] for old, new in done for name in names):
            return
    pytest.fail(f"a worker never worked: {driver.runner.counters()}")


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
def test_any_number_of_threads_gives_equal_bits(threads: int, alone: list[tuple]) -> None:
    driver = load(threads=threads)
    assert len(driver.runner.counters()) == threads
    until_all_worked(driver, ("tiles", "segments", "rows"), JOBS, alone)
    assert max(len(step.slices) for step in driver.steps) == 8
    assert any({piece.n == 1 for piece in step.slices} == {True, False} for step in driver.steps)


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_an_int8_cache_on_any_number_of_threads(threads: int, alone_int8: list[tuple]) -> None:
    assert bits(load(threads=threads, kv="int8").run(JOBS, 64)) == alone_int8


@pytest.mark.parametrize("threads", [2, 7])
def test_one_row_at_a_time_on_many_threads(threads: int, alone: list[tuple]) -> None:
    """Contexts split over the workers by segment, one decode row per step."""
    driver = load(threads=threads)
    until_all_worked(driver, ("tiles", "segments"), JOBS[:1], alone[:1])


def test_every_tile_is_computed_once() -> None:
    """Whoever computes them: the workers' tiles add up to those of one thread."""
    one, three = load(threads=1), load(threads=3)
    one.run(JOBS, 64)
    three.run(JOBS, 64)
    for name in ("tiles", "sampled"):
        assert sum(w[name] for w in three.runner.counters()) == one.runner.counters()[0][name] > 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned here")
def test_bits_do_not_change_while_other_processes_take_the_processors(alone: list[tuple]) -> None:
    """Workers are interrupted at any place, and the others finish what they have not begun."""
    busy = [
        subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: 0"]
        )
        for cpu in sorted(os.sched_getaffinity(0))[:8]
        for _ in range(2)
    ]
    try:
        for threads in (2, 5):
            assert bits(load(threads=threads).run(JOBS, 64)) == alone
    finally:
        for process in busy:
            process.kill()
            process.wait()


REPLAY = """
import sys, msgspec
from spola.backends.native import NativeRunner
from spola.core.step import decode_step
sys.path.insert(0, {tests!r})
from support.tiny import Tiny, TinyModel
model = TinyModel(msgspec.convert(msgspec.json.decode({tiny!r}), Tiny))
runner = NativeRunner()
runner.load(model.spec, model, model.config(blocks=80, threads={threads}, kv={kv!r}))
steps = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[bytes])
outputs = [runner.execute(decode_step(step)).slices for step in steps]
sys.stdout.buffer.write(msgspec.msgpack.encode([runner.isa, outputs]))
"""


def replay(driver: Driver, threads: int, kv: str, **environ: str) -> tuple[str, list]:
    """Run the recorded steps of ``driver`` in another process; its instruction set and its outputs."""
    tests = str(Path(__file__).parents[1])
    code = REPLAY.format(tests=tests, tiny=msgspec.json.encode(TINY), threads=threads, kv=kv)
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=msgspec.msgpack.encode([encode_step(step) for step in driver.steps]),
        capture_output=True,
        check=True,
        env={**os.environ, **environ},
    )
    return msgspec.msgpack.decode(done.stdout, type=tuple[str, list[tuple]])


def plain(outputs: list[StepOutput]) -> list:
    return msgspec.msgpack.decode(msgspec.msgpack.encode([out.slices for out in outputs]))


@pytest.mark.parametrize("kv", ["f16", "int8,f16", "f32,int8"])
@pytest.mark.parametrize("isa", instruction_sets().compiled)
def test_recorded_steps_replay_to_equal_bits_elsewhere(isa: str, kv: str) -> None:
    if isa not in instruction_sets().usable:
        pytest.skip(f"this processor has no {isa}")
    driver = load(threads=2, kv=kv)
    driver.run(JOBS[1:5], 32)
    assert decode_step(encode_step(driver.steps[0])) == driver.steps[0]
    chosen, outputs = replay(driver, 3, kv, SPOLA_ISA=isa)
    assert chosen == isa
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(outputs)) == plain(driver.outputs)


def test_huge_pages_change_nothing(monkeypatch: pytest.MonkeyPatch, alone: list[tuple]) -> None:
    monkeypatch.setenv("SPOLA_HUGE_PAGES", "0")
    assert bits([load().alone(JOBS[1])]) == alone[1:2]


def test_an_instruction_set_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOLA_ISA", raising=False)
    found = instruction_sets()
    assert found.chosen == found.usable[0]
    assert "scalar" in found.usable
    monkeypatch.setenv("SPOLA_ISA", "scalar")
    assert instruction_sets().chosen == "scalar"
    assert load().runner.isa == "scalar"
    monkeypatch.setenv("SPOLA_ISA", "avx1024")
    with pytest.raises(ConfigError, match="SPOLA_ISA='avx1024'"):
        load()


def test_rows_that_nobody_wants_leave_after_the_last_kv_write() -> None:
    """Of 90 rows one is wanted, all, or (of an earlier chunk) none: counted in stages that go row by row."""

    def rows_done(prompt: list[int], chunk: int, want: str) -> int:
        driver = load(threads=1)
        driver.alone(Job(prompt, 1, want=want), chunk)  # type: ignore[arg-type]
        return sum(worker["rows"] for worker in driver.runner._decoder.counters())

    prompt = TOKENS[:90]
    every, last = rows_done(prompt, 512, "logits"), rows_done(prompt, 512, "sample")
    later = 3  # merge and prepare, prepare, prepare: the stages by row that follow in the last layer
    assert every - last == later * 89
    assert rows_done(prompt, 45, "sample") == last


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one processor"
)
def test_workers_keep_off_the_processor_of_the_caller() -> None:
    usable = os.sched_getaffinity(0)
    before = set(os.listdir("/proc/self/task"))
    driver = load(threads=2)
    (worker,) = (int(task) for task in set(os.listdir("/proc/self/task")) - before)
    assert bits([driver.alone(JOBS[1])])
    allowed = os.sched_getaffinity(worker)
    assert allowed < usable
    assert len(allowed) == len(usable) - 1
    # A caller that may use one processor alone leaves its workers where they are.
    try:
        os.sched_setaffinity(0, allowed if len(allowed) == 1 else {min(allowed)})
        assert bits([driver.alone(JOBS[1])])
        assert os.sched_getaffinity(worker) == allowed
    finally:
        os.sched_setaffinity(0, usable)
