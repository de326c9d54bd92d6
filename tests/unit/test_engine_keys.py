"""Several keys at once: what a flood of one costs the others, in virtual time; whose prompts come first."""

from __future__ import annotations

import random
from types import SimpleNamespace

import msgspec
import pytest

from spola.backends.null import NullRunner
from spola.core.quantiles import describe
from spola.core.runner import Capabilities, KvGroup, RunnerConfig
from spola.core.step import Step, StepOutput
from spola.engine.cost_model import CostModel, Prices, StepBudget, work_of
from spola.engine.engine import Engine
from spola.engine.fair import RECENT_S, Company
from spola.engine.limits import Limits
from spola.engine.scheduler import Scheduler
from support.engine_rig import Rig, request

SEATS = 16
# A model of 135 million parameters on two threads, about.
PRICES = Prices(fixed_s=0.007, row_s=0.00045, head_s=0.0, pair_s=2e-7)
HEAVY, LIGHT = (64, 128), (32, 16)  # tokens of a prompt and of an answer
CLIENT_S = 0.003  # until a client that has its answer is heard again


class Priced(NullRunner):
    """Steps take what ``PRICES`` say, give or take."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(strict=False, script=lambda state, ids: 1)
        self._rng = rng

    def execute(self, step: Step) -> StepOutput:
        seconds = CostModel(PRICES).seconds(work_of(step)) * self._rng.uniform(0.97, 1.06)
        return msgspec.structs.replace(super().execute(step), elapsed_s=seconds)


class Server:
    """Closed loops and floods of two keys; ``ttft`` of the light one, in seconds."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        runner, groups, blocks = Priced(random.Random(seed + 1)), (KvGroup((0,), 1, 4, 4),), (512,)
        sizes = {"max_step_tokens": 512, "max_seqs": SEATS, "max_model_len": 512}
        runner.load(
            SimpleNamespace(vocab=5000, hidden=6),
            (),
            RunnerConfig(kv_groups=groups, kv_blocks=blocks, **sizes),
        )
        self._scheduler = Scheduler(
            Limits(**sizes, key_seats=SEATS - SEATS // 8),
            Capabilities(device="null"),
            groups,
            blocks,
            budget=StepBudget(CostModel(PRICES), 0.1),
        )
        self._engine = Engine(runner, self._scheduler, vocab=5000)
        self._due: list[tuple[float, str, int]] = []
        self._keys: dict[int, str] = {}
        self.now = 0.0
        self.ttft: list[float] = []
        self.loops = {"light"}
        self.open = 0  # requests of the heavy key

    def send(self, key: str, at: float) -> None:
        self._due.append((at, key, len(self._keys) + len(self._due)))
        self.open += key == "heavy"

    def step(self) -> None:
        self._due.sort(reverse=True)
        while self._due and self._due[-1][0] <= self.now:
            at, key, _ = self._due.pop()
            prompt, output = LIGHT if key == "light" else HEAVY
            id = len(self._keys)
            self._keys[id] = key
            ids = self._rng.choices(range(5000), k=prompt)
            self._engine.add(request(id, ids, output, ignore_eos=True, key=key, arrival_s=at))
        if not self._engine.has_work:
            self.now = self._due[-1][0]
            return
        for event in self._engine.step(self.now):
            if event.summary is not None:
                self._ended(self._keys[event.id], event.summary)
        self.now = self._scheduler._landed_s

    def _ended(self, key: str, summary) -> None:
        self.open -= key == "heavy"
        if key == "light":
            self.ttft.append(summary.ttft_s)
        if key in self.loops:
            self.send(key, summary.finished_s + CLIENT_S)


def light_beside(heavy: int, seed: int, *, loop: bool) -> list[float]:
    """TTFT of 30 light requests, one after the other, beside ``heavy`` requests that came at once."""
    server = Server(seed)
    if loop:
        server.loops.add("heavy")
    for i in range(heavy):
        server.send("heavy", i * 0.0004)
    begin = 2.0 + random.Random(seed).random()
    while server.now < begin:
        server.step()
    server.send("light", server.now)
    while len(server.ttft) < 30:
        assert server.open > SEATS or loop, "the flood has ended"
        server.step()
    return server.ttft


@pytest.mark.parametrize("seed", range(4))
def test_a_flood_costs_another_key_little_more_than_half_of_the_seats_busy(seed: int) -> None:
    half = describe(light_beside(SEATS // 2, seed, loop=True))
    flood = describe(light_beside(200, seed, loop=False))
    assert flood["p95"] <= 1.5 * half["p95"]
    assert flood["p50"] <= 1.5 * half["p50"]
    # Nobody waits for a step that a flood's prompts fill: those would take 0.1 s each.
    assert flood["max"] < 0.085


def running(rig: Rig, n: int, key: str) -> None:
    rig.add(*(request(100 + i, 4, 60, ignore_eos=True, key=key) for i in range(n)))
    rig.step()
    rig.step()


def shares(step: Step) -> dict[int, int]:
    return {piece.id: piece.n for piece in step.slices if piece.id < 100}


def test_a_light_keys_prompt_comes_first_and_its_step_is_short() -> None:
    rig = Rig(rows=64, seqs=8, blocks=200)
    running(rig, 3, "heavy")
    rig.add(request(1, 100, 2, key="heavy"))
    rig.step()
    rig.add(request(2, 20, 2, key="light"))
    assert shares(rig.step()) == {1: 20, 2: 20}
    rig.finish()


def test_light_keys_leave_a_heavy_ones_prompts_every_second_step() -> None:
    rig = Rig(rows=20, seqs=20, blocks=400, prefix_cache=False)
    running(rig, 4, "heavy")
    rig.add(request(1, 80, 2, key="heavy"))
    rig.step()
    rows = []
    for i in range(8):
        rig.add(*(request(10 + 2 * i + k, 40, 1, key=f"light{k}") for k in (0, 1)))
        rows.append(shares(rig.step()).get(1, 0))
    assert all(max(pair) >= 8 for pair in zip(rows[::2], rows[1::2], strict=True)), rows
    rig.finish()


def test_keys_keep_each_other_company_for_a_while() -> None:
    company = Company()
    company.came("a")
    company.came("a")
    assert not company.several(0.0)
    company.came("b")
    assert company.several(0.0)
    company.left("b", 10.0)
    assert company.several(9.9 + RECENT_S)
    assert not company.several(10.0 + RECENT_S)
    company.left("a", 50.0)
    company.came("b")
    assert company.several(51.0)
    company.left("a", 60.0)
    company.left("b", 61.0)
    assert not company.several(62.0 + 2 * RECENT_S)


def test_alone_a_key_has_whole_steps() -> None:
    rig = Rig(rows=64, blocks=200)
    rig.scheduler.budget = StepBudget(CostModel(Prices(0.0, 1.0, 0.0, 0.0)), 1.0)
    rig.scheduler.budget.observe = lambda work, elapsed: None  # these prices hold
    rig.add(request(1, 64, 1, key="a"))
    assert shares(rig.step()) == {1: 64}
    rig.add(request(2, 5, 1, key="b"))
    rig.step()
    rig.add(request(3, 64, 1, key="a"))
    assert shares(rig.step()) == {3: 48}
    rig.finish()
    rig.now += RECENT_S
    rig.add(request(4, 63, 1, key="a"))
    assert shares(rig.step()) == {4: 63}


def test_a_better_class_behind_a_key_that_has_its_places_takes_a_place() -> None:
    rig = Rig(seqs=2, key_seats=1)
    rig.add(request(1, 4, 20, ignore_eos=True, key="a"))
    rig.add(request(2, 4, 20, ignore_eos=True, key="b", priority=2))
    rig.step()
    rig.add(request(3, 4, 4, ignore_eos=True, key="a", priority=0))
    rig.add(request(4, 4, 4, ignore_eos=True, key="c", priority=1))
    step = rig.step()
    assert [state.id for state in step.new] == [4]
    assert step.gone == (2,)
    results = rig.finish()
    assert results[2].finals[0].summary.preemptions == 1
    assert [results[i].reason for i in (1, 2, 3, 4)] == ["length"] * 4
