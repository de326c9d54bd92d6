"""Drafts in the engine: counted, cut by guards and ends, never at a cost to others."""

from __future__ import annotations

import pytest

from spola.core.step import unpack_ids
from spola.engine.speculate import Speculator
from support.engine_rig import VOCAB, Rig, expected, request


class Oracle:
    """Knows the answers; ``wrong`` says at which output positions it lies."""

    def __init__(self, answers: dict[int, list[int]], wrong=lambda at: False) -> None:
        self.answers, self.wrong, self.forgotten = answers, wrong, []

    def propose(self, text, most):
        at = len(text.known) - text.n_prompt
        ids = self.answers[text.id][at : at + most]
        return [(t + 1) % VOCAB if self.wrong(at + i) else t for i, t in enumerate(ids)]

    def forget(self, text) -> None:
        self.forgotten.append(text.id)


class Watcher:
    """A guard that allows all ids but those banned, ends at ``stop`` and keeps books."""

    def __init__(self, stop: int | None = None, banned: frozenset[int] = frozenset()) -> None:
        self.stop, self.banned, self.fed = stop, banned, []

    def mask(self, out) -> bool:
        if not self.banned:
            return False
        for i in range(VOCAB):
            if i not in self.banned:
                out[i // 32] |= 1 << i % 32
        return True

    def accept(self, ids):
        for i, token in enumerate(ids):
            self.fed.append(token)
            if token == self.stop:
                return i + 1
        return None

    def rollback(self, n: int) -> None:
        del self.fed[len(self.fed) - n :]


def free(rows: int) -> float:
    return 1.0


def rig_for(requests, *, wrong=lambda at: False, cost=free, most=6, **fields):
    answers = {r.id: expected(r, list(r.known), 200).ids for r in requests}
    oracle = Oracle(answers, wrong)
    rig = Rig(**fields)
    rig.scheduler.speculator = Speculator(oracle, cost, most=most)
    rig.add(*requests)
    return rig, oracle, answers


def test_right_drafts_make_few_steps_and_are_counted() -> None:
    rig, oracle, answers = rig_for([request(1, 9, 30)])
    got = rig.finish()[1]
    assert got.ids == answers[1]
    assert len(rig.steps) == 1 + 5  # 1 token, then 7, 7, 7, 7, 1
    summary = got.finals[0].summary
    assert (summary.n_drafted, summary.n_accepted) == (24, 24)
    stats = rig.scheduler.stats
    assert (stats.draft_runs, stats.draft_tokens, stats.accepted_tokens) == (4, 24, 24)
    assert stats.decode_tokens == 5 + 24
    assert oracle.forgotten == [1]


def test_wrong_drafts_change_nothing_and_stop() -> None:
    cheap = [request(1, 9, 150)]
    rig, _, answers = rig_for(cheap, wrong=lambda at: True, cost=lambda rows: 1.0 + 0.2 * rows)
    got = rig.finish()[1]
    assert got.ids == answers[1]
    summary = got.finals[0].summary
    assert summary.n_accepted == 0
    assert 0 < summary.n_drafted < 30
    # A try now and then remains, as the text may change.
    assert 0 < sum(piece.n_drafts > 0 for step in rig.steps[-100:] for piece in step.slices) < 10


@pytest.mark.parametrize("most", [1, 3, 6])
def test_half_right_drafts_keep_the_answer(most: int) -> None:
    requests = [request(i, 5 + i, 40, seed=i) for i in range(4)]
    rig, _, answers = rig_for(requests, wrong=lambda at: at % 3 == 0, most=most, rows=64)
    results = rig.finish()
    assert {id: r.ids for id, r in results.items()} == answers
    drafted, accepted = rig.scheduler.stats.draft_tokens, rig.scheduler.stats.accepted_tokens
    assert 0 < accepted < drafted


def test_a_draft_ends_before_the_end_of_the_text() -> None:
    whole = expected(request(1, 9, 40), list(request(1, 9).known), 200).ids
    end = whole[5]
    rig, _, answers = rig_for([request(1, 9, 40, eos_ids=[end])])
    got = rig.finish()[1]
    assert got.ids == answers[1] == whole[: whole.index(end) + 1]
    assert got.reason == "stop"
    drafts = [t for s in rig.steps for p in s.slices for t in unpack_ids(p.ids)[p.n - p.n_drafts :]]
    assert drafts
    assert end not in drafts


def test_a_guard_follows_the_drafts_and_takes_them_back() -> None:
    whole = expected(request(1, 9, 30), list(request(1, 9).known), 200).ids
    for stop in (None, whole[8], whole[13]):
        guard = Watcher(stop)
        rig, _, _ = rig_for([request(1, 9, 30, guard=guard)])
        got = rig.finish()[1]
        want = whole if stop is None else whole[: whole.index(stop) + 1]
        assert got.ids == want
        assert guard.fed == want
        assert rig.scheduler.stats.accepted_tokens > 4
        assert len(rig.steps) < len(want)
        tried = [t for s in rig.steps for p in s.slices for t in unpack_ids(p.ids)[p.n - p.n_drafts :]]
        assert stop not in tried


def test_masks_are_per_position_and_illegal_drafts_are_cut() -> None:
    whole = expected(request(1, 9, 30), list(request(1, 9).known), 200).ids
    banned = frozenset({whole[9]})
    plain = Rig()
    plain.add(request(1, 9, 30, guard=Watcher(None, banned)))
    want = plain.finish()[1].ids
    rig, _, _ = rig_for([request(1, 9, 30, guard=Watcher(None, banned))])
    assert rig.finish()[1].ids == want
    assert not banned & set(want)
    words = 4 * ((VOCAB + 31) // 32)
    several = [p for s in rig.steps for p in s.slices if p.n_drafts]
    assert several
    for piece in several:
        assert len(piece.masks) == words * piece.n_head
        assert not banned & set(unpack_ids(piece.ids)[piece.n - piece.n_drafts :])


def test_a_guard_that_fails_on_a_draft_ends_only_its_request() -> None:
    class Broken(Watcher):
        def accept(self, ids):
            if len(self.fed) > 4:
                raise ValueError("lost")
            return super().accept(ids)

    rig, _, answers = rig_for([request(1, 9, 30, guard=Broken()), request(2, 9, 30)])
    results = rig.finish()
    assert results[1].reason == "error"
    assert "lost" in results[1].finals[0].error
    assert results[2].ids == answers[2]


def test_drafts_never_take_rows_from_prompts_or_decodes() -> None:
    requests = [request(i, 4, 40) for i in range(3)]
    rig, _, answers = rig_for(requests, rows=12, seqs=8, most=16)
    for _ in range(3):
        rig.step()
    late = request(9, 60, 5)
    answers[9] = expected(late, list(late.known), 200).ids
    rig.add(late)
    while late.computed < 60:
        step = rig.step()
        assert step.n_rows == 12 or late.computed == 60
        rows = {piece.id: piece for piece in step.slices}
        if late.computed < 60:
            assert not any(piece.n_drafts for piece in step.slices)
            assert rows[9].n == 12 - (len(rows) - 1)
    assert {id: r.ids for id, r in rig.finish().items()} == answers
    assert rig.scheduler.stats.accepted_tokens > 10


def test_drafts_take_no_block_that_a_decode_needs() -> None:
    def run(speculate: bool) -> Rig:
        requests = [request(i, 6, 20) for i in range(3)]
        rig, _, answers = rig_for(requests, blocks=12, seqs=3, rows=64)
        if not speculate:
            rig.scheduler.speculator = None
        assert {id: r.ids for id, r in rig.finish().items()} == answers
        return rig

    assert run(True).scheduler.stats.preemptions <= run(False).scheduler.stats.preemptions
