"""Rejection mode: the closed form of the rule, distributions through a runner, and what is refused."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from spola.backends.reference.sampling import accepts, residual
from spola.backends.shapes import StepError
from spola.core.params import SamplingParams
from spola.core.runner import BLOCK_TOKENS, DraftHolder
from spola.core.step import RequestState, Slice, Step, pack_ids
from support.drive import Driver, Job, greedy
from support.tiny import Tiny

TINY = Tiny(seed=11, vocab=288, layers=1)
V = TINY.vocab
PROMPT = [5, 9, 70, 3]
ALLOWED = (3, 20, 31, 32, 100, V - 1)
PARAMS = SamplingParams(temperature=4.0, top_p=0.95, allowed_token_ids=ALLOWED)


def some(rng, n: int, zeros: int = 0) -> np.ndarray:
    """Probabilities of ``n`` ids, ``zeros`` of them 0."""
    p = rng.random(n)
    p[rng.permutation(n)[:zeros]] = 0
    return p / p.sum()


def test_accepted_and_residual_mass_are_the_target_to_1e_12() -> None:
    """Over all drafts and all u: q(y) P(accept y) + P(refuse) residual(y) = p(y)."""
    rng = np.random.default_rng(1)
    for n in range(2, 40):
        p, q = some(rng, n, n // 3), some(rng, n, n // 4)
        share = np.array([min(1.0, p[x] / q[x]) if q[x] > 0 else 0.0 for x in range(n)])
        for x in range(n):  # the rule takes exactly the u below that share
            below, above = np.nextafter(share[x], 0) * (1 - 1e-15), share[x] * (1 + 1e-14)
            assert q[x] == 0 or share[x] == 0 or accepts(p, q, x, below)
            assert not accepts(p, q, x, above) or above >= 1
        more = residual(p, q)
        out = q * share + (1 - (q * share).sum()) * more / more.sum()
        assert np.abs(out - p).max() < 1e-12
        # Accepted with probability 1 - TV(p, q).
        assert (q * share).sum() == pytest.approx(np.minimum(p, q).sum(), abs=1e-12)
        assert np.minimum(p, q).sum() == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12)


def spread(q: np.ndarray) -> np.ndarray:
    """Weights over the vocabulary of probabilities of the allowed ids."""
    out = np.zeros(V, np.float32)
    out[list(ALLOWED)] = 3.0 * q
    return out


class Rounds:
    """Prompts of which two drafted tokens are verified; blocks and ids are used once."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.steps, self.next = driver, 0, 10_000

    def verify(self, drafts: list[list[int]], held: list[np.ndarray], seeds: list[int], params=PARAMS):
        """Outputs of one step in which request i, after PROMPT, has drafts[i] from the rows held[i]."""
        new, slices = [], []
        for i, (ids, rows, seed) in enumerate(zip(drafts, held, seeds, strict=True)):
            self.next += 1
            self.driver.runner.hold(i + 1, rows.astype(np.float32).tobytes())
            new.append(RequestState(self.next, 0, seed, pack_ids(PROMPT), len(PROMPT), params))
            slices.append(
                Slice(
                    self.next,
                    0,
                    pack_ids([*PROMPT, *ids]),
                    tuple(pack_ids([i]) for _ in self.driver.config.kv_groups),
                    1 + len(ids),
                    len(ids),
                    proposals=i + 1,
                )
            )
        gone = tuple(self.driver.gone)
        self.driver.gone = [state.id for state in new]
        step = Step(self.steps, tuple(slices), new=tuple(new), gone=gone)
        self.steps += 1
        return self.driver.runner.execute(step).slices


def softmax(logits: np.ndarray, top_p: float) -> np.ndarray:
    """Of the allowed ids, by the settings of PARAMS."""
    w = np.exp((logits[list(ALLOWED)].astype(np.float64) - logits.max()) / PARAMS.temperature)
    order = sorted(range(len(w)), key=lambda i: (-w[i], ALLOWED[i]))
    mass = np.cumsum(w[order]) / w.sum()
    keep = order[: int(np.searchsorted(mass, top_p)) + 1]
    out = np.zeros_like(w)
    out[keep] = w[keep] / w[keep].sum()
    return out


def test_pairs_of_tokens_are_distributed_as_without_drafts(bench) -> None:
    driver = bench.load(TINY, blocks=64)
    assert isinstance(driver.runner, DraftHolder)
    rng = np.random.default_rng(4)
    rows = {first: driver.alone(Job([*PROMPT, first], want="logits")).logits[-2:] for first in ALLOWED}
    p1 = softmax(rows[ALLOWED[0]][0], PARAMS.top_p)
    p2 = {first: softmax(rows[first][1], PARAMS.top_p) for first in ALLOWED}
    q1, q2 = some(rng, 6), {first: some(rng, 6) for first in ALLOWED}
    rounds = Rounds(driver)
    single, pairs, complete, accepted = Counter(), Counter(), 0, 0
    n = 3200
    for start in range(0, n, 64):
        drafts, held = [], []
        for _ in range(64):
            one = int(rng.choice(ALLOWED, p=q1))
            two = int(rng.choice(ALLOWED, p=q2[one]))
            drafts.append([one, two])
            held.append(np.stack([spread(q1), spread(q2[one])]))
        outs = rounds.verify(drafts, held, list(range(start, start + 64)))
        for ids, out in zip(drafts, outs, strict=True):
            assert out.error is None
            assert len(out.ids) == out.accepted + 1
            assert list(out.ids[: out.accepted]) == ids[: out.accepted]
            single[out.ids[0]] += 1
            accepted += out.accepted > 0
            if out.accepted:  # given an accepted first token, the second must follow p2
                pairs[out.ids[:2]] += 1
                complete += 1
    check(single, {i: n * p for i, p in zip(ALLOWED, p1, strict=True)})
    alpha = float(np.minimum(p1, q1).sum())
    assert abs(accepted - n * alpha) < 5 * math.sqrt(n)
    first_of = Counter()
    for (one, _), count in pairs.items():
        first_of[one] += count
    check(pairs, {(a, b): first_of[a] * p2[a][j] for a in ALLOWED for j, b in enumerate(ALLOWED)})
    assert complete > n / 4


def check(seen: Counter, expected: dict) -> None:
    """Chi-square over the cells expected often enough, the rest as one."""
    big = {cell: e for cell, e in expected.items() if e >= 8}
    rest = sum(expected.values()) - sum(big.values())
    chi = sum((seen[cell] - e) ** 2 / e for cell, e in big.items())
    rest_seen = sum(seen.values()) - sum(seen[cell] for cell in big)
    chi += (rest_seen - rest) ** 2 / max(rest, 1.0)
    assert len(big) >= 3
    assert chi < len(big) + 5 * math.sqrt(2 * len(big)) + 10
    assert all(expected[cell] > 0 for cell in seen)


def test_greedy_targets_take_only_their_best(bench) -> None:
    driver = bench.load(TINY, blocks=64)
    best = driver.alone(Job(PROMPT, 3, greedy())).ids
    rounds = Rounds(driver)
    flat = np.ones((2, V), np.float32)
    right, wrong = rounds.verify([best[:2], [best[0], best[1] + 1]], [flat, flat], [1, 2], greedy())
    assert (list(right.ids), right.accepted) == (best, 2)
    assert (list(wrong.ids), wrong.accepted) == (best[:2], 1)


def test_what_is_held_is_checked_and_used_once(bench) -> None:
    driver = bench.load(TINY, blocks=64)
    hold = driver.runner.hold
    good = np.ones((1, V), np.float32)
    for rows in (good * 0, good * np.nan, good * np.inf, -good, good[:, 1:], good[:0]):
        with pytest.raises(StepError):
            hold(1, rows.astype(np.float32).tobytes())
    with pytest.raises(StepError):
        hold(0, good.tobytes())
    rounds = Rounds(driver)
    with pytest.raises(StepError):  # two drafts, one distribution
        rounds.verify([[3, 20]], [good], [1])
    assert rounds.verify([[3]], [good], [1])[0].error is None
    state = RequestState(7, 0, 0, pack_ids(PROMPT), len(PROMPT), PARAMS)
    table = (pack_ids([0]),) * len(driver.config.kv_groups)
    again = Slice(7, 0, pack_ids([*PROMPT, 3]), table, 2, 1, proposals=1)
    with pytest.raises(StepError):
        driver.runner.execute(Step(99, (again,), new=(state,), gone=tuple(driver.gone)))
    assert len(PROMPT) + 2 <= BLOCK_TOKENS
