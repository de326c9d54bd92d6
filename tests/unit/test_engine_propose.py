"""Proposers against plain searches of the text, and the choice of the draft length against its formulas."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

import pytest

from spola.engine.propose import NGramProposer
from spola.engine.speculate import Acceptance, StepTimes, best_length, expected_tokens
from spola.engine.suffix import SuffixProposer


@dataclass
class Words:
    id: int = 0
    known: array = field(default_factory=lambda: array("i"))
    n_prompt: int = 0
    salt: str | None = None


def text(*ids: int, id: int = 0) -> Words:
    return Words(id, array("i", ids))


def by_search(known: list[int], most: int, shortest: int, longest: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        for end in range(len(known) - 1, n - 1, -1):
            if len(known) > n and known[end - n : end] == known[-n:]:
                out = list(known)
                for i in range(most):
                    out.append(out[end + i])
                return out[len(known) :]
    return []


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (2, 4), (3, 3)])
def test_ngram_is_the_last_occurrence_of_the_longest(shortest: int, longest: int) -> None:
    for seed in range(40):
        draw = random.Random(seed)
        proposer = NGramProposer(shortest=shortest, longest=longest)
        words = text(*(draw.randrange(4) for _ in range(draw.randrange(1, 12))))
        found = 0
        for _ in range(60):
            most = draw.randrange(1, 7)
            got = list(proposer.propose(words, most))
            assert got == by_search(list(words.known), most, shortest, longest)
            found += bool(got)
            for _ in range(draw.choice((1, 1, 2, 5))):
                words.known.append(draw.randrange(4))
        assert found > 10


def test_ngram_keeps_requests_apart_and_forgets() -> None:
    proposer = NGramProposer(shortest=1, longest=2)
    one, two = text(1, 2, 3, 1, id=1), text(4, 5, 6, 1, id=2)
    assert list(proposer.propose(one, 2)) == [2, 3]
    assert list(proposer.propose(two, 2)) == []
    proposer.forget(one)
    proposer.forget(one)
    assert list(proposer.propose(text(7, 8, 1, id=1), 2)) == []


def test_ngram_continues_a_loop() -> None:
    assert list(NGramProposer().propose(text(9, 1, 2, 1, 2, 1, 2), 7)) == [1, 2, 1, 2, 1, 2, 1]


def longest_match(known: list[int], deepest: int) -> int:
    best = 0
    for end in range(1, len(known)):
        n = 0
        while n < min(deepest, end) and known[end - 1 - n] == known[-1 - n]:
            n += 1
        best = max(best, n)
    return best


def test_suffix_guesses_only_what_followed_a_longest_match() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        proposer = SuffixProposer(shortest=1, deepest=6, votes=1000, min_share=0.0)
        words = text(*(draw.randrange(3) for _ in range(30)))
        for _ in range(20):
            known = list(words.known)
            longest = longest_match(known, 6)
            got = list(proposer.propose(words, 4))
            assert len(got) <= longest
            ends = [e for e in range(longest, len(known)) if known[e - longest : e] == known[-longest:]]
            follows = [known[e] for e in ends]
            assert follows.count(got[0]) == max(map(follows.count, follows))
            words.known.append(draw.randrange(3))


def test_suffix_stops_where_the_past_disagrees() -> None:
    past = [1, 2, 3, 4, 5, 0, 1, 2, 3, 6, 7, 0, 1, 2, 3, 8, 9, 0]
    assert list(SuffixProposer(min_share=0.6).propose(text(*past, 1, 2), 8)) == [3]
    assert list(SuffixProposer(min_share=0.6).propose(text(*past[:6], 1, 2, 3), 8)) == [4, 5, 0]
    assert list(SuffixProposer().propose(text(1, 2, 3, 4), 8)) == []


def test_suffix_learns_from_finished_answers_within_bounds() -> None:
    proposer = SuffixProposer(history=40)
    answer = Words(1, array("i", [50, 51, 1, 2, 3, 4, 5, 6]), n_prompt=2)
    proposer.propose(answer, 4)
    proposer.forget(answer)
    assert list(proposer.propose(text(70, 1, 2, 3, id=2), 8)) == [4, 5, 6]
    assert list(proposer.propose(Words(4, array("i", [70, 1, 2, 3]), salt="mine"), 8)) == []
    # What was asked is nobody else's business.
    assert list(proposer.propose(text(70, 50, 51, id=3), 8)) == []
    for id in range(5, 60):
        other = text(*(100 * id + i for i in range(30)), id=id)
        proposer.propose(other, 4)
        proposer.forget(other)
        assert len(proposer._history.ids) <= 80
    assert list(proposer.propose(text(70, 1, 2, 3, id=99), 8)) == []


def test_expected_tokens_is_the_mean_of_a_simulation_by_enumeration() -> None:
    for alpha in (0.0, 0.3, 0.9, 1.0):
        for n in range(6):
            exact = sum(alpha**i for i in range(n + 1))  # P(at least i drafts accepted)
            assert expected_tokens(alpha, n) == pytest.approx(exact, abs=1e-12)


def test_the_length_follows_acceptance_cost_and_load() -> None:
    def flat(rows: int) -> float:
        return 1.0

    def linear(rows: int) -> float:
        return float(rows)

    assert best_length(0.5, 8, flat, rows=1, tokens=0) == 8
    assert best_length(0.9, 8, linear, rows=1, tokens=0) == 0
    assert best_length(0.0, 8, flat, rows=1, tokens=0) == 0

    def knee(rows: int) -> float:
        return float(max(4, rows))

    assert best_length(0.6, 8, knee, rows=1, tokens=0) == 3
    assert best_length(0.95, 16, lambda rows: 10.0 + rows, rows=1, tokens=0) > 3
    assert best_length(0.6, 8, knee, rows=3, tokens=2) == 1
    assert best_length(0.6, 8, knee, rows=8, tokens=7) == 0


def test_step_times_are_learned_and_scale_the_guess() -> None:
    times = StepTimes(lambda rows: 10.0 + rows)
    assert times(5) == 15.0
    times.add(2, 24.0)
    assert times(2) == 24.0
    assert times(4) == pytest.approx(28.0)
    times.add(2, 34.0)
    assert times(2) == pytest.approx(26.0)
    times.add(3, 0.0)
    assert times(3) == pytest.approx(26.0 * 13 / 12)


def test_acceptance_counts_only_drafts_that_were_tried() -> None:
    record = Acceptance()
    assert record.rate(0.6) == pytest.approx(0.6)
    record.add(8, 0)
    assert record.rate(0.6) == pytest.approx(1.2 / 3)
    good = Acceptance()
    for _ in range(200):
        good.add(4, 4)
    assert good.rate(0.6) > 0.95
    for _ in range(3000):
        good.doubt()
    assert good.rate(0.6) == pytest.approx(0.6, abs=0.01)
