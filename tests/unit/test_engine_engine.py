"""Engine over a runner: masks and guards, faults of either, scores and vectors, the record."""

import math
from array import array

import pytest

from spola.backends.null import NullRunner
from spola.core.runner import Capabilities
from spola.core.step import decode_step, encode_step
from support.engine_rig import VOCAB, Rig, expected, next_token, request


class ListGuard:
    """Allows the ids of ``allowed`` and stops as ``stops`` says after that many accepted ids."""

    def __init__(self, allowed=None, stop_after=None, keep=1):
        self.allowed, self.stop_after, self.keep = allowed, stop_after, keep
        self.seen = []

    def mask(self, out):
        if self.allowed is None:
            return False
        for id in self.allowed:
            out[id // 32] |= 1 << id % 32
        return True

    def accept(self, ids):
        assert len(ids) == 1
        self.seen += ids
        return self.keep if len(self.seen) == self.stop_after else None

    def rollback(self, n):
        raise AssertionError("nothing is rolled back without drafts")


def test_a_mask_is_obeyed_and_every_id_is_fed_once():
    rig = Rig(rows=8)
    guard = ListGuard(allowed=[3, 33, 39])
    rig.add(request(1, 12, 10, ignore_eos=True, guard=guard), request(2, 5, 10, ignore_eos=True))
    results = rig.finish()
    assert set(results[1].ids) <= {3, 33, 39}
    assert guard.seen == results[1].ids
    assert results[2].ids == expected(request(2, 5, 10), request(2, 5).known, 200).ids
    masks = [piece.masks for step in rig.steps for piece in step.slices if piece.id == 1]
    assert masks[0] is None  # a chunk that ends before the prompt does
    assert all(mask is not None and len(mask) == 8 for mask in masks[-10:])


@pytest.mark.parametrize("keep", [0, 1])
def test_a_guard_stops_and_says_whether_the_last_id_is_kept(keep):
    rig = Rig()
    rig.add(request(1, 5, 10, ignore_eos=True, guard=ListGuard(stop_after=4, keep=keep)))
    result = rig.finish()[1]
    assert (len(result.ids), result.reason) == (3 + keep, "stop")
    assert result.finals[0].stop_id is None
    assert result.finals[0].summary.n_output == 3 + keep


def test_a_guard_survives_preemption():
    rig = Rig(blocks=8)
    guard = ListGuard()
    rig.add(request(1, 10, 14, ignore_eos=True), request(2, 10, 14, ignore_eos=True, guard=guard))
    results = rig.finish()
    assert rig.scheduler.stats.preemptions > 0
    assert guard.seen == results[2].ids
    assert len(guard.seen) == 14


@pytest.mark.parametrize("method", ["mask", "accept"])
def test_a_guard_that_raises_ends_its_request_alone(method):
    class Broken(ListGuard):
        pass

    def boom(self, *args):
        raise RuntimeError("boom")

    setattr(Broken, method, boom)
    rig = Rig()
    rig.add(request(1, 5, 4, guard=Broken()), request(2, 5, 4, ignore_eos=True))
    results = rig.finish()
    assert results[1].reason == "error"
    assert results[1].finals[0].error == "the stop or grammar matcher failed: boom"
    assert len(results[2].ids) == 4


def test_a_mask_that_allows_nothing_ends_its_request_alone():
    rig = Rig()
    rig.add(request(1, 5, 4, guard=ListGuard(allowed=[])), request(2, 5, 4, ignore_eos=True))
    results = rig.finish()
    assert results[1].finals[0].error == "the mask allows no token"
    assert len(results[2].ids) == 4


class Failing(NullRunner):
    """Raises on the given steps, before or after it took in what is new and gone."""

    def __init__(self, at, *, late, short=False):
        caps = Capabilities(device="null", block_size=4)
        super().__init__(capabilities=caps, script=next_token)
        self.at, self.late, self.short = at, late, short

    def execute(self, step):
        if step.index == self.at and not self.late:
            raise RuntimeError("no power")
        output = super().execute(step)
        if step.index == self.at:
            if self.short:
                return type(output)(output.elapsed_s, output.slices[:-1])
            raise RuntimeError("no power")
        return output


@pytest.mark.parametrize("late", [False, True])
def test_a_runner_that_raises_ends_the_requests_of_that_step_alone(late):
    rig = Rig(runner=Failing(3, late=late), seqs=2)
    rig.add(*(request(i, 4, n, ignore_eos=True) for i, n in ((1, 3), (2, 9), (3, 5), (4, 5))))
    results = rig.finish()
    # Step 3 holds 2 and 3, and says that 1 is gone.
    assert {id: r.reason for id, r in results.items()} == {1: "length", 2: "error", 3: "error", 4: "length"}
    assert results[2].finals[0].error == "the backend failed: RuntimeError: no power"
    assert len(results[2].ids) == 3
    assert len(results[4].ids) == 5
    assert rig.runner.held == {4}


def test_an_interrupt_is_passed_on_and_leaves_the_engine_usable():
    class Interrupted(Failing):
        def execute(self, step):
            if step.index == 2:
                raise KeyboardInterrupt
            return super().execute(step)

    rig = Rig(runner=Interrupted(99, late=False), seqs=1)
    rig.add(request(1, 4, 9, ignore_eos=True), request(2, 4, 3, ignore_eos=True))
    with pytest.raises(KeyboardInterrupt):
        rig.finish()
    results = rig.finish()
    assert (len(results[1].ids), results[1].reason) == (2, "error")
    assert (len(results[2].ids), results[2].reason) == (3, "length")


def test_an_output_for_too_few_slices_is_a_failed_step():
    rig = Rig(runner=Failing(0, late=True, short=True))
    rig.add(request(1, 4))
    assert "0 outputs for 1 slices" in rig.finish()[1].finals[0].error


def logprob(hit):
    return (0.0 if hit else -1.0) - math.log1p((VOCAB - 1) / math.e)


@pytest.mark.parametrize("head_from", [0, 6])
def test_scores_of_all_targets_come_in_order_whatever_the_chunk(head_from):
    prompt = list(request(1, 14).known)
    prompt[9] = next_token(request(1, 1).state(), prompt[:9])
    right = [i for i in range(1, 14) if prompt[i] == next_token(request(1, 1).state(), prompt[:i])]
    assert right
    for chunk in (1, 5, 32):
        rig = Rig(chunk=chunk)
        rig.add(request(1, prompt, want="score", head_from=head_from), request(2, 9, 3))
        result = rig.finish()[1]
        assert result.scores == [logprob(i in right) for i in range(head_from + 1, 14)]
        assert (result.ids, result.reason) == ([], "stop")


def test_logits_and_vectors():
    for chunk in (1, 5, 32):
        rig = Rig(chunk=chunk)
        rig.add(
            request(1, 14, want="logits", head_from=11),
            request(2, 14, want="embed_last"),
            request(3, 14, want="embed_mean"),
        )
        results = rig.finish()
        logits = array("f", results[1].logits)
        assert len(logits) == 3 * VOCAB
        best = [row.index(0.0) for row in (logits[i : i + VOCAB] for i in range(0, 3 * VOCAB, VOCAB))]
        known = list(request(1, 14).known)
        assert best == [next_token(request(1, 1).state(), known[:n]) for n in (12, 13, 14)]
        vectors = [results[2].vector, results[3].vector]
        assert all(len(vector) == 24 for vector in vectors)
        if chunk == 1:
            first = vectors
        assert vectors == first
        assert all(r.reason == "stop" for r in results.values())


def test_a_score_that_is_preempted_gives_each_score_once():
    rig = Rig(blocks=8, chunk=1)
    rig.add(request(1, 8, 16, ignore_eos=True), request(2, 20, want="score"))
    results = rig.finish()
    assert results[2].finals[0].summary.preemptions > 0
    scored = [s for step in rig.steps for s in step.slices if s.id == 2 and s.n_head]
    assert sum(s.n_head for s in scored) == 19
    assert [s.start + s.n - s.n_head for s in scored] == sorted({s.start + s.n - s.n_head for s in scored})
    assert len(results[2].scores) == 19


def test_logprobs_are_those_of_the_kept_ids():
    rig = Rig()
    rig.add(request(1, 5, 4, ignore_eos=True, logprobs=2))
    seen = []
    while rig.engine.has_work:
        for event in rig.engine.step(0.0):
            seen += event.logprobs
            assert [entry.id for entry in event.logprobs] == list(event.ids)
    assert all(len(entry.top) == 2 and entry.top[0] == (entry.id, entry.logprob) for entry in seen)


def test_a_recorded_history_replays_equal():
    rig = Rig(blocks=10, rows=12)
    outputs = []
    rig.engine._record = lambda step, out: (rig.steps.append(step), outputs.append(out))
    rig.add(*(request(i, 6 + i, 12, seed=i, temperature=float(i % 2)) for i in range(6)))
    rig.finish()
    assert rig.scheduler.stats.preemptions > 0
    again = Rig(blocks=10, rows=12).runner
    assert [again.execute(decode_step(encode_step(step))) for step in rig.steps] == outputs


def test_stats_add_up():
    rig = Rig(blocks=8)
    rig.add(request(1, 10, 14, ignore_eos=True), request(2, 10, 14, ignore_eos=True))
    rig.finish()
    stats = rig.scheduler.stats.as_dict()
    assert stats["steps"] == len(rig.steps)
    assert stats["prefill_tokens"] + stats["decode_tokens"] == sum(step.n_rows for step in rig.steps)
    assert stats["output_tokens"] == 28
    # All but the last token of each request is computed once, and again after a preemption.
    assert sum(step.n_rows for step in rig.steps) == 2 * 23 + stats["recomputed_tokens"]
    assert stats["finished"] == {"stop": 0, "length": 2, "abort": 0, "error": 0}
    assert stats["added"] == 2
