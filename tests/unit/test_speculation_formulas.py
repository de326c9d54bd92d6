"""The formulas of docs/speculation.md, each against an enumeration of what can happen."""

from __future__ import annotations

import itertools
import random

import pytest

from spola.engine.speculate import best_length, expected_tokens

ALPHAS = (0.0, 0.2, 0.5, 0.75, 0.99)


def enumerated(alpha: float, drafts: int) -> float:
    """Mean of tokens per step over every sequence of good and bad drafts."""
    total = 0.0
    for good in itertools.product((True, False), repeat=drafts):
        chance = 1.0
        for one in good:
            chance *= alpha if one else 1 - alpha
        accepted = next((i for i, one in enumerate(good) if not one), drafts)
        total += chance * (accepted + 1)
    return total


@pytest.mark.parametrize("alpha", ALPHAS)
def test_tokens_per_step(alpha: float) -> None:
    for drafts in range(9):
        assert expected_tokens(alpha, drafts) == pytest.approx(enumerated(alpha, drafts), abs=1e-12)


def test_acceptance_is_one_minus_the_distance_of_the_distributions() -> None:
    draw = random.Random(1)
    for _ in range(50):
        p, q = ([draw.random() ** 3 for _ in range(7)] for _ in range(2))
        p, q = ([x / sum(row) for x in row] for row in (p, q))
        by_rule = sum(q[x] * min(1.0, p[x] / q[x]) for x in range(7))
        assert by_rule == pytest.approx(sum(map(min, p, q)), abs=1e-12)
        assert by_rule == pytest.approx(1 - sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2, abs=1e-12)


def speedup(alpha: float, drafts: int, c: float) -> float:
    return enumerated(alpha, drafts) / (drafts * c + 1)


def test_speed_up() -> None:
    for alpha in ALPHAS[:-1]:
        for c in (0.01, 0.1, 0.3, 0.6, 0.9):
            for drafts in range(8):
                formula = (1 - alpha ** (drafts + 1)) / ((1 - alpha) * (drafts * c + 1))
                assert formula == pytest.approx(speedup(alpha, drafts, c), abs=1e-12)
            best = max(speedup(alpha, drafts, c) for drafts in range(1, 9))
            assert (best > 1) == (alpha > c)


def test_operations() -> None:
    for alpha in ALPHAS[:-1]:
        for drafts, c in itertools.product(range(8), (0.0, 0.05, 0.5)):
            spent = drafts * c + drafts + 1  # drafts made, rows verified
            formula = (1 - alpha) * spent / (1 - alpha ** (drafts + 1))
            assert formula == pytest.approx(spent / enumerated(alpha, drafts), abs=1e-12)
            assert formula >= 1 - 1e-12


def test_the_length_chosen_is_the_best_of_all() -> None:
    draw = random.Random(2)
    lengths = set()
    for _ in range(200):
        times = [1.0]
        for _ in range(40):
            times.append(times[-1] + draw.choice((0.0, 0.05, 0.2, 1.0)))
        rows, tokens, alpha, most = draw.randrange(1, 9), draw.randrange(8), draw.random(), draw.randrange(12)

        def cost(n: int, times: list[float] = times) -> float:
            return times[n]

        def rate(n: int) -> float:
            return (tokens + enumerated(alpha, n)) / times[rows + n]  # noqa: B023

        got = best_length(alpha, most, cost, rows=rows, tokens=tokens)
        assert rate(got) == pytest.approx(max(map(rate, range(most + 1))), abs=1e-9)
        lengths.add(got)
    assert {0, 1, 2, 3} <= lengths
