"""The engine on runners that compute: a request's output is that of the request run alone.

Random mixes of arrivals, chunks, small pools (so that requests are preempted and computed again), aborts and
scores. The recorded steps must show that the mixes happened.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from spola.core.params import SamplingParams
from spola.core.step import Step, decode_step, encode_step
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from support.tiny import Tiny, TinyModel

MODEL = TinyModel(Tiny(seed=11, vocab=288))
VOCAB = MODEL.tiny.vocab


@dataclass
class Got:
    ids: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    reason: str | None = None


class Run:
    """An engine on ``runner`` with ``blocks`` blocks of 32 tokens."""

    def __init__(
        self,
        runner,
        *,
        blocks: int,
        rows: int,
        seqs: int = 8,
        chunk: int | None = None,
        cache: bool = True,
    ) -> None:
        config = MODEL.config(blocks=blocks, max_step_tokens=rows, max_seqs=seqs, max_model_len=256)
        runner.load(MODEL.spec, MODEL, config)
        limits = Limits(
            max_step_tokens=rows,
            max_seqs=seqs,
            max_model_len=256,
            chunk=chunk,
            watermark=0.0,
            prefix_cache=cache,
        )
        self.scheduler = Scheduler(
            limits, runner.capabilities, config.kv_groups, config.kv_blocks, check=True
        )
        self.steps: list[Step] = []
        self.outputs: list = []
        self.engine = Engine(runner, self.scheduler, vocab=VOCAB, record=self._record)
        self.got: dict[int, Got] = {}

    def _record(self, step, output) -> None:
        self.steps.append(step)
        self.outputs.append(output)

    def step(self) -> None:
        for event in self.engine.step(float(len(self.steps))):
            got = self.got.setdefault(event.id, Got())
            assert got.reason is None
            assert event.error is None, event.error
            got.ids += event.ids
            got.logprobs += event.logprobs or ()
            got.scores += event.scores or ()
            got.reason = event.finish_reason

    def finish(self) -> dict[int, Got]:
        while self.engine.has_work:
            self.step()
        return self.got


def make(id: int) -> Request:
    """Request ``id``, always the same one."""
    draw = random.Random(id)
    ids = [draw.randrange(VOCAB) for _ in range(draw.choice((1, 20, 31, 32, 33, 64, 90)))]
    if id % 3:  # texts that begin alike, as far as the middle of a block
        common = random.Random(0)
        ids = [common.randrange(VOCAB) for _ in range(draw.choice((31, 50, 64)))] + ids[:12]
    if id % 5 == 4:
        return Request(id=id, ids=[*ids, 1], params=SamplingParams(), want="score")
    params = SamplingParams(
        max_tokens=draw.choice((5, 20, 40)),
        temperature=draw.choice((0.0, 0.9)),
        repetition_penalty=draw.choice((1.0, 1.2)),
        logprobs=2,
    )
    return Request(id=id, ids=ids, params=params, seed=id, eos_ids=[7])


N = 12


@pytest.fixture
def alone(bench) -> dict[int, Got]:
    """Each request by itself, in one chunk, in a pool with room."""
    run = Run(bench.runner(), blocks=16, rows=256, seqs=1, cache=False)
    for id in range(N):
        run.engine.add(make(id))
        run.finish()
    assert {got.reason for got in run.got.values()} == {"stop", "length"}
    return run.got


def test_any_mix_gives_what_each_gives_alone(bench, alone) -> None:
    preempted = mixed = several = hits = inside = 0
    for seed, chunk in enumerate((None, 7, 32)):
        draw = random.Random(seed)
        run = Run(bench.runner(), blocks=9, rows=48, seqs=6, chunk=chunk)
        arrivals = list(range(N))
        draw.shuffle(arrivals)
        while arrivals or run.engine.has_work:
            if arrivals and (draw.random() < 0.3 or not run.engine.has_work):
                run.engine.add(make(arrivals.pop()))
            if draw.random() < 0.05:
                extra = make(1000 + len(run.steps))
                run.engine.add(extra)
                run.step()
                run.engine.abort(extra.id)
            run.step()
        for id, want in alone.items():
            got = run.got[id]
            assert (got.ids, got.reason) == (want.ids, want.reason), id
            if bench.exact:
                assert got == want, id
            else:
                assert [x.logprob for x in got.logprobs] == pytest.approx(
                    [x.logprob for x in want.logprobs], abs=2e-3
                )
                assert got.scores == pytest.approx(want.scores, abs=2e-3)
        preempted += run.scheduler.stats.preemptions
        mixed += sum(len({s.n == 1 for s in step.slices}) == 2 for step in run.steps)
        several += sum(len(step.slices) >= 4 for step in run.steps)
        for step in run.steps:
            new = {state.id for state in step.new}
            starts = [piece.start for piece in step.slices if piece.id in new]
            hits += sum(start > 0 for start in starts)
            inside += sum(start % 32 > 0 for start in starts)
            assert len(step.copies) <= len(starts)
        assert all(pool.used == 0 for pool in run.scheduler.kv.pools)
    assert preempted >= 3
    assert mixed >= 10
    assert several >= 5
    assert hits >= 10
    assert inside >= 5


def test_choices_share_the_prompt_and_give_what_each_gives_alone(bench) -> None:
    """Also those that begin in a copy of a block, and those that are preempted in between."""
    params = SamplingParams(max_tokens=30, temperature=0.9, n=4, logprobs=1)
    prompt = make(1).known[:45]

    def choice(index: int, leader: int | None) -> Request:
        return Request(id=index, choice=index, leader=leader, ids=prompt, params=params, seed=5)

    single = Run(bench.runner(), blocks=16, rows=256, seqs=1, cache=False)
    for index in range(4):
        single.engine.add(choice(index, None))
        single.finish()
    run = Run(bench.runner(), blocks=8, rows=48, seqs=6, cache=False)
    for index in range(4):
        run.engine.add(choice(index, 0))
    run.finish()
    starts = [s.start for step in run.steps for s in step.slices if s.id in {r.id for r in step.new}]
    assert starts[:4] == [0, *[len(prompt) - 1] * 3]
    assert sum(len(step.copies) for step in run.steps) >= 3
    assert run.scheduler.stats.preemptions >= 1
    for index in range(4):
        assert run.got[index].ids == single.got[index].ids
        if bench.exact:
            assert run.got[index] == single.got[index]


def test_a_recorded_run_replays_to_equal_bits(bench) -> None:
    run = Run(bench.runner(), blocks=9, rows=48, seqs=6)
    for id in range(6):
        run.engine.add(make(id))
    run.finish()
    again = bench.runner()
    config = MODEL.config(blocks=9, max_step_tokens=48, max_seqs=6, max_model_len=256)
    again.load(MODEL.spec, MODEL, config)
    for step, output in zip(run.steps, run.outputs, strict=True):
        assert again.execute(decode_step(encode_step(step))).slices == output.slices
