"""A draft model beside a served one: match mode bit for bit, rejection mode exact in distribution."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from spola.core.params import SamplingParams
from spola.engine.drafter import Drafter
from spola.engine.engine import Engine
from spola.engine.kv import KvSpace
from spola.engine.limits import Limits
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.engine.speculate import Speculator
from support.drive import Driver, Job
from support.tiny import Tiny, TinyModel

BIG = TinyModel(Tiny(seed=11, vocab=288, layers=2))
SMALL = TinyModel(Tiny(seed=11, vocab=288, layers=1))
V = 288


def make(id: int) -> Request:
    """Request ``id``, always the same one; every second prompt begins like another."""
    draw = random.Random(id)
    ids = [i % V for i in range(40)] if id % 2 else []
    ids = ids + [draw.randrange(V) for _ in range(draw.choice((5, 33)))]
    params = SamplingParams(
        max_tokens=draw.choice((20, 40)),
        temperature=draw.choice((0.0, 0.7)),
        repetition_penalty=draw.choice((1.0, 1.1)),
        frequency_penalty=draw.choice((0.0, 0.4)),
        top_p=draw.choice((1.0, 0.9)),
        logprobs=2,
        min_tokens=draw.choice((0, 15)),
    )
    return Request(id=id, ids=ids, params=params, seed=id, eos_ids=[7, 9], bad_ids=[[3], [5, 6]])


class Pair:
    """An engine over one runner and a drafter over another."""

    def __init__(self, bench, big: TinyModel, small: TinyModel | None, *, rule="match", blocks=64, **sizes):
        sizes = {"max_step_tokens": 128, "max_seqs": 8, "max_model_len": 256} | sizes
        chunk, most = sizes.pop("chunk", None), sizes.pop("most", 6)
        draft_blocks = sizes.pop("draft_blocks", 64)
        kv = "f16" if bench.exact else "f32"
        runner, config = bench.runner(), big.config(blocks=blocks, kv=kv, **sizes)
        runner.load(big.spec, big, config)
        self.drafter, speculator = None, None
        if small is not None:
            helper, helped = bench.runner(), small.config(blocks=draft_blocks, kv=kv, **sizes)
            helper.load(small.spec, small, helped)
            space = KvSpace(
                helped.kv_groups, helped.kv_blocks, block_size=32, max_slice=sizes["max_step_tokens"]
            )
            self.drafter = Drafter(
                helper,
                space,
                lambda n: 1.0,
                ratio=0.5,
                max_rows=sizes["max_step_tokens"],
                max_len=256,
                identity={},
                rule=rule,
            )
            speculator = Speculator(self.drafter, lambda n: 1.0, most=most, draft_cost=lambda n: 0.01)
        self.scheduler = Scheduler(
            Limits(
                max_step_tokens=sizes["max_step_tokens"],
                max_seqs=sizes["max_seqs"],
                max_model_len=256,
                chunk=chunk,
                watermark=0.0,
            ),
            runner.capabilities,
            config.kv_groups,
            config.kv_blocks,
            speculator=speculator,
            check=True,
        )
        self.steps = []
        self.engine = Engine(
            runner,
            self.scheduler,
            vocab=V,
            record=lambda step, out: self.steps.append(step),
            drafter=self.drafter,
        )

    def run(self, requests):
        """{id: (ids, logprobs, reason)}"""
        for request in requests:
            self.engine.add(request)
        got = {}
        while self.engine.has_work:
            for event in self.engine.step(0.0):
                assert event.error is None, event.error
                ids, logprobs, _ = got.get(event.id, ([], [], None))
                logprobs += event.logprobs or ()
                got[event.id] = (ids + list(event.ids), logprobs, event.finish_reason)
        assert self.drafter is None or self.drafter.failure is None
        return got


@pytest.fixture
def alone(bench):
    n = 8 if bench.kind == "native" else 4
    return {id: Pair(bench, BIG, None, max_seqs=1).run([make(id)])[id] for id in range(n)}


@pytest.mark.parametrize(
    ("small", "sizes"),
    [
        (SMALL, {}),
        (BIG, {}),
        (SMALL, {"blocks": 6, "max_step_tokens": 32, "max_seqs": 6, "chunk": 7}),
        (BIG, {"draft_blocks": 8}),
    ],
)
def test_a_draft_model_changes_no_bit(bench, alone, small, sizes) -> None:
    pair = Pair(bench, BIG, small, **sizes)
    got = pair.run([make(id) for id in alone])
    for id, want in alone.items():
        assert (got[id][0], got[id][2]) == (want[0], want[2]), id
        if bench.exact:
            assert got[id][1] == want[1], id
    stats = pair.scheduler.stats
    assert stats.accepted_tokens > 10
    if small is BIG and bench.exact and not sizes:  # the same model, the same random numbers
        assert stats.accepted_tokens == stats.draft_tokens
    elif small is SMALL:
        assert stats.accepted_tokens < stats.draft_tokens
    if "blocks" in sizes:
        assert stats.preemptions >= 1
    assert all(pool.used == 0 for pool in pair.drafter.kv.pools)


ALLOWED = (3, 20, 31, 100)
PROMPT = [5, 9, 70, 3]
PARAMS = SamplingParams(temperature=3.0, top_p=0.95, allowed_token_ids=ALLOWED, max_tokens=4, ignore_eos=True)


def softmax(logits: np.ndarray) -> np.ndarray:
    """What PARAMS makes of a row, of the ids of ALLOWED."""
    w = np.exp((logits[list(ALLOWED)].astype(np.float64) - logits.max()) / PARAMS.temperature)
    order = sorted(range(len(w)), key=lambda i: (-w[i], ALLOWED[i]))
    mass = np.cumsum(w[order]) / w.sum()
    keep = order[: int(np.searchsorted(mass, PARAMS.top_p)) + 1]
    out = np.zeros_like(w)
    out[keep] = w[keep] / w[keep].sum()
    return out


def true_shares(driver: Driver) -> dict[tuple[int, ...], float]:
    """The chance of every answer of three tokens."""
    out = {}
    for first, second in itertools.product(range(len(ALLOWED)), repeat=2):
        ids = [*PROMPT, ALLOWED[first], ALLOWED[second]]
        rows = driver.alone(Job(ids, want="logits")).logits[-3:]
        p = [softmax(row) for row in rows]
        for third, token in enumerate(ALLOWED):
            share = p[0][first] * p[1][second] * p[2][third]
            out[ALLOWED[first], ALLOWED[second], token] = share
    return out


def test_rejection_mode_is_exact_in_distribution(bench) -> None:
    """Chi-square over all answers of three tokens: a smaller model draws the drafts, the backend verifies."""
    expected = true_shares(bench.load(BIG))
    n = 4000 if bench.kind == "native" else 320
    pair = Pair(
        bench, BIG, SMALL, rule="rejection", max_seqs=64, max_step_tokens=512, blocks=128, draft_blocks=128
    )
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n, 16):
        batch = range(start, min(start + 16, n))
        got = pair.run([Request(id=i, ids=PROMPT, params=PARAMS, seed=i) for i in batch])
        seen.update(tuple(ids[:3]) for ids, _, _ in got.values())
    stats = pair.scheduler.stats
    assert n / 5 < stats.accepted_tokens < stats.draft_tokens
    assert any(piece.n_drafts > 1 for step in pair.steps for piece in step.slices)
    assert any(piece.proposals for step in pair.steps for piece in step.slices)
    assert all(expected[answer] > 0 for answer in seen)
    big = {answer: n * share for answer, share in expected.items() if n * share >= 8}
    rest = n - sum(big.values())
    chi = sum((seen[answer] - e) ** 2 / e for answer, e in big.items())
    chi += (n - sum(seen[answer] for answer in big) - rest) ** 2 / max(rest, 1.0)
    assert len(big) >= 6
    assert chi < len(big) + 4 * math.sqrt(2 * len(big))
    assert pair.drafter.runner.memory()["workspace"] < 1 << 30


def test_a_model_that_drafts_for_itself_is_never_rejected(bench) -> None:
    pair = Pair(bench, BIG, BIG, rule="rejection")
    params = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True)
    pair.run([Request(id=i, ids=PROMPT, params=params, seed=i) for i in range(4)])
    stats = pair.scheduler.stats
    assert stats.draft_tokens > 60
    if bench.exact:
        assert stats.accepted_tokens == stats.draft_tokens
    else:
        assert stats.accepted_tokens > 0.9 * stats.draft_tokens


class Watcher:
    """A guard that allows ALLOWED only, and ends the text at its last id."""

    def __init__(self) -> None:
        self.fed: list[int] = []

    def mask(self, out) -> bool:
        for token in ALLOWED:
            out[token // 32] |= 1 << token % 32
        return True

    def accept(self, ids):
        for i, token in enumerate(ids):
            self.fed.append(token)
            if token == ALLOWED[-1]:
                return i + 1
        return None

    def rollback(self, n: int) -> None:
        del self.fed[len(self.fed) - n :]


def test_masks_of_a_guard_keep_rejection_mode_exact(bench) -> None:
    """Illegal drafts and drafts that end a text stay in the rule: leaving them out would bend the rest."""
    driver = bench.load(BIG)
    rows = {a: driver.alone(Job([*PROMPT, a], want="logits")).logits[-2:] for a in ALLOWED}
    p = {a: softmax(rows[a][1]) for a in ALLOWED}
    first = softmax(rows[ALLOWED[0]][0])
    n = 4000 if bench.kind == "native" else 320
    loose = SamplingParams(temperature=3.0, top_p=0.95, max_tokens=3, ignore_eos=True)
    pair = Pair(
        bench, BIG, SMALL, rule="rejection", max_seqs=64, max_step_tokens=512, blocks=128, draft_blocks=128
    )
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n, 16):
        batch = range(start, min(start + 16, n))
        requests = [Request(id=i, ids=PROMPT, params=loose, seed=i, guard=Watcher()) for i in batch]
        seen.update(tuple(ids[:2]) for ids, _, _ in pair.run(requests).values())
    assert pair.scheduler.stats.draft_tokens > n / 3
    chi, cells = 0.0, 0
    for i, a in enumerate(ALLOWED[:-1]):
        total = sum(count for ids, count in seen.items() if ids[0] == a)
        assert abs(total - n * first[i]) < 5 * math.sqrt(n)
        for j, b in enumerate(ALLOWED):
            e = total * p[a][j]
            if e >= 8:
                chi, cells = chi + (seen[a, b] - e) ** 2 / e, cells + 1
    assert cells >= 5
    assert chi < cells + 4 * math.sqrt(2 * cells)
