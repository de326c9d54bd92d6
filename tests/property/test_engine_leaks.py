"""Ten thousand requests with aborts, deadlines and failures: nothing stays behind, one final event each."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from spola.backends.null import NullRunner, _Held
from spola.core.errors import CapacityError, RequestError
from spola.core.runner import Capabilities
from spola.core.step import SliceOutput, Step, StepOutput
from spola.engine.events import Event
from spola.engine.metrics import Metrics
from spola.engine.request import Request
from spola.runtime.timeline import Timeline
from support.engine_rig import FULL, VOCAB, Rig, request, window

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


class Failing(NullRunner):
    """Raises in some steps, before or after it computed, and fails some slices."""

    def __init__(self, rng: random.Random, **more) -> None:
        super().__init__(capabilities=Capabilities(device="null", block_size=4, speculation=True), **more)
        self.rng = rng
        self.raised = self.failed = 0

    def execute(self, step: Step) -> StepOutput:
        chance = self.rng.random()
        if chance < 0.002:
            self.raised += 1
            raise RuntimeError("before")
        output = super().execute(step)
        if chance < 0.004:
            self.raised += 1
            raise RuntimeError("after")
        if chance < 0.05:
            slices = list(output.slices)
            slices[self.rng.randrange(len(slices))] = SliceOutput(error="this one failed")
            self.failed += 1
            output = msgspec.structs.replace(output, slices=tuple(slices))
        return output


class Load:
    """Keeps a random number of requests in the engine, aborts some at random moments."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig, self.rng = rig, rng
        self.accepted: set[int] = set()
        self.live: set[int] = set()
        self.finals: Counter[str] = Counter()
        self.refused = self.late = 0
        self.next = 0

    def add(self) -> None:
        self.next += 1
        rng = self.rng
        shared = [5, 6, 7, 8, 9, 10, 11, 12] if rng.random() < 0.3 else []
        prompt = shared + [rng.randrange(VOCAB) for _ in range(rng.choice((1, 3, 9, 30, 130)))]
        fields = {
            "priority": rng.randint(-1, 1),
            "eos_ids": (3,),
            "want": rng.choice(("sample", "sample", "sample", "score", "embed_mean")),
            "arrival_s": self.rig.now,
            "key": rng.choice("abc"),
            "deadline_s": self.rig.now + rng.uniform(0, 1) if rng.random() < 0.2 else None,
        }
        choices = 3 if fields["want"] == "sample" and rng.random() < 0.1 else 1
        leader, tokens = self.next if choices > 1 else None, rng.choice((1, 2, 5, 20))
        for choice in range(choices):
            self.next += choice > 0
            new = request(self.next, prompt, tokens, choice=choice, leader=leader, **fields)
            try:
                self.rig.engine.add(new)
            except (RequestError, CapacityError):
                self.refused += 1
            else:
                self.accepted.add(new.id)
                self.live.add(new.id)

    def step(self) -> None:
        if self.live and self.rng.random() < 0.1:
            self.rig.engine.abort(self.rng.choice(tuple(self.live)))
        if self.rng.random() < 0.01:
            self.rig.engine.abort(self.rng.randint(1, self.next))  # also of those that ended long ago
        for event in self.rig.engine.step(self.rig.now):
            assert event.id in self.live, "an event of a request that had ended"
            if event.final:
                self.live.remove(event.id)
                self.finals[event.finish_reason] += 1
                self.late += "deadline" in (event.error or "")
        self.rig.now += 0.01

    def run(self, requests: int) -> None:
        goal = self.next + requests
        while self.next < goal or self.rig.engine.has_work:
            while self.next < goal and len(self.live) < 24 and self.rng.random() < 0.8:
                self.add()
            self.step()


def memory() -> int:
    """Bytes that this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_behind() -> Counter[str]:
    gc.collect()
    kinds = (Request, Event, _Held, Step)
    return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))


@pytest.mark.parametrize(
    ("groups", "requests"),
    [((FULL,), 10_000), ((FULL, window(6)), 10_000 if SOAK else 3000)],
    ids=["full", "window"],
)
def test_many_requests_leave_nothing_behind(groups, requests: int, tmp_path: Path) -> None:
    rng = random.Random(len(groups))
    runner = Failing(rng, strict=False)
    rig = Rig(runner=runner, groups=groups, blocks=32, seqs=8, rows=32, max_len=120)
    rig.scheduler._check = SOAK
    rig.engine._record = None
    metrics = Metrics(8)
    rig.engine.observers = [metrics, Timeline(tmp_path / "trace.json")] if SOAK else [metrics]
    load = Load(rig, rng)
    before = left_behind()
    load.run(requests)

    assert sum(load.finals.values()) == len(load.accepted)  # one each: a second one is an error in step
    assert not load.live
    assert all(load.finals[reason] > 50 for reason in ("stop", "length", "abort", "error")), load.finals
    assert load.refused > 50
    assert load.late > 50
    assert runner.raised > 1
    assert runner.failed > 50
    assert rig.scheduler.stats.preemptions > 20
    assert sum(metrics.finished.values()) == len(load.accepted)
    assert not metrics._last_token
    scheduler = rig.scheduler
    assert not [*scheduler.requests, *scheduler.waiting, *scheduler.running]
    assert not scheduler._choices
    for pool in scheduler.kv.pools:
        pool.check()
        assert (pool.free, pool.promised) == (pool.n_blocks, 0)
    scheduler._check = True
    rig.add(request(load.next + 1, 5, 2))  # tells the backend who is gone, and all still works
    rig.finish()
    assert runner.held <= {load.next + 1}
    rig.engine.close()
    rig.results.clear()
    assert left_behind() - before <= Counter({"Step": 1})


@pytest.mark.skipif(not SOAK, reason="make soak")
def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Under 5 MB over 5,000 requests, after the first thousand."""
    rng = random.Random(9)
    rig = Rig(runner=Failing(rng, strict=False), blocks=40, seqs=8, rows=32, max_len=120)
    rig.scheduler._check = False
    rig.engine._record = None
    rig.engine.observers = [Metrics(8), Timeline(tmp_path / "trace.json")]
    load = Load(rig, rng)
    load.run(1000)
    gc.collect()
    before = memory()
    load.run(5000)
    gc.collect()
    grown = memory() - before
    rig.engine.close()
    assert grown < 5_000_000, f"{grown / 1e6:.1f} MB"
