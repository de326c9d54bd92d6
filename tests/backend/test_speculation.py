"""Match mode on runners that compute: speculation changes no bit of any token or log-probability.

Drafts come from the real proposers and from liars, for greedy and seeded requests, with penalties, alone
and in mixes with chunks, preemption and stop strings.
"""

from __future__ import annotations

import random

import pytest

from spola.core.params import SamplingParams
from spola.engine.engine import Engine
from spola.engine.limits import Limits
from spola.engine.propose import NGramProposer
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.engine.speculate import Speculator
from spola.engine.suffix import SuffixProposer
from support.tiny import Tiny, TinyModel

MODEL = TinyModel(Tiny(seed=11, vocab=288))
VOCAB = MODEL.tiny.vocab


class Liar:
    """Guesses by chance, or, where it knows the answer, mostly that."""

    def __init__(self, answers: dict[int, list[int]], seed: int = 0) -> None:
        self.answers, self.draw = answers, random.Random(seed)

    def propose(self, text, most):
        at = len(text.known) - text.n_prompt
        right = self.answers[text.id][at : at + self.draw.randrange(most + 1)]
        return [t if self.draw.random() < 0.8 else self.draw.randrange(VOCAB) for t in right]

    def forget(self, text) -> None:
        pass


class Even:
    """A guard that ends after ``most`` even ids: state that must be taken back with the drafts."""

    def __init__(self, most: int) -> None:
        self.most, self.fed = most, []

    def mask(self, out) -> bool:
        if sum(t % 2 == 0 for t in self.fed) % 2:
            out[:] = memoryview(b"\x77\xff\xff\xff" * len(out)).cast("I")
            return True
        return False

    def accept(self, ids):
        for i, token in enumerate(ids):
            self.fed.append(token)
            if sum(t % 2 == 0 for t in self.fed) >= self.most:
                return i + 1
        return None

    def rollback(self, n: int) -> None:
        assert 0 < n <= len(self.fed)
        del self.fed[len(self.fed) - n :]


def make(id: int) -> Request:
    """Request ``id``, always the same one: repetitive prompts, so that looking them up finds something."""
    draw = random.Random(id)
    part = [draw.randrange(VOCAB) for _ in range(draw.choice((3, 8)))]
    ids = (part * 12)[: draw.choice((20, 31, 33, 64))]
    params = SamplingParams(
        max_tokens=draw.choice((20, 40)),
        temperature=draw.choice((0.0, 0.0, 0.7)),
        repetition_penalty=draw.choice((1.0, 1.1)),
        frequency_penalty=draw.choice((0.0, 0.4)),
        top_p=draw.choice((1.0, 0.9)),
        logprobs=2,
        logprobs_mode=draw.choice(("raw", "processed")),
        prompt_logprobs=draw.choice((None, 1)),
        min_tokens=draw.choice((0, 15)),
        allowed_token_ids=tuple(range(0, VOCAB, 2)) if id == 4 else None,
    )
    bad_ids = [[draw.randrange(VOCAB)], *([i, j] for i in range(20) for j in range(20))]
    guard = Even(12) if id % 3 == 2 else None
    return Request(id=id, ids=ids, params=params, seed=id, eos_ids=[7, 9], guard=guard, bad_ids=bad_ids)


def run(bench, requests, proposer=None, *, blocks=64, rows=128, seqs=8, chunk=None):
    """{id: (ids, logprobs, reason)}, the scheduler and the steps."""
    runner = bench.runner()
    kv = "f16" if bench.exact else "f32"
    config = MODEL.config(blocks=blocks, kv=kv, max_step_tokens=rows, max_seqs=seqs, max_model_len=256)
    runner.load(MODEL.spec, MODEL, config)
    speculator = proposer and Speculator(proposer, lambda rows: 1.0, most=6)
    scheduler = Scheduler(
        Limits(max_step_tokens=rows, max_seqs=seqs, max_model_len=256, chunk=chunk, watermark=0.0),
        runner.capabilities,
        config.kv_groups,
        config.kv_blocks,
        speculator=speculator,
        check=True,
    )
    steps = []
    engine = Engine(runner, scheduler, vocab=VOCAB, record=lambda step, out: steps.append(step))
    got = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for event in engine.step(float(len(steps))):
            assert event.error is None, event.error
            ids, logprobs, _ = got.get(event.id, ([], [], None))
            logprobs += event.prompt_logprobs or ()
            got[event.id] = (
                ids + list(event.ids),
                logprobs + list(event.logprobs or ()),
                event.finish_reason,
            )
    return got, scheduler, steps


N = 9


def same(bench, got, want) -> None:
    for id in want:
        assert (got[id][0], got[id][2]) == (want[id][0], want[id][2]), id
        if bench.exact:
            assert got[id][1] == want[id][1], id
        else:
            for one, other in zip(got[id][1], want[id][1], strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=2e-3)


@pytest.fixture
def alone(bench):
    return {id: run(bench, [make(id)], seqs=1)[0][id] for id in range(N)}


def test_speculation_in_match_mode_changes_no_bit(bench, alone) -> None:
    liar = Liar({id: ids for id, (ids, _, _) in alone.items()})
    for proposer, least in ((NGramProposer(shortest=1), 4), (SuffixProposer(shortest=1), 4), (liar, 40)):
        got, scheduler, _ = run(bench, [make(id) for id in range(N)], proposer)
        same(bench, got, alone)
        stats = scheduler.stats
        assert least <= stats.accepted_tokens < stats.draft_tokens


def test_neither_do_chunks_preemption_and_company(bench, alone) -> None:
    answers = {id: ids for id, (ids, _, _) in alone.items()}
    for seed, chunk in enumerate((None, 7)):
        got, scheduler, steps = run(
            bench, [make(id) for id in range(N)], Liar(answers, seed), blocks=9, rows=32, seqs=6, chunk=chunk
        )
        same(bench, got, alone)
        assert scheduler.stats.preemptions >= 1
        assert scheduler.stats.accepted_tokens >= 20
        assert any(len({bool(s.n_drafts) for s in step.slices}) == 2 for step in steps)
        assert any(s.n_drafts and s.masks for step in steps for s in step.slices)
