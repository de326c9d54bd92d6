"""The order of a step: decodes, prompts, admission; preemption, and the protocol with the backend."""

import msgspec
import pytest

from spola.core.step import StepOutput, unpack_ids
from support.engine_rig import Rig, expected, request, shapes


def test_a_prompt_is_computed_in_chunks_and_then_extended():
    rig = Rig(rows=16, chunk=5)
    rig.add(request(1, 12, 3, ignore_eos=True))
    seen = [shapes(rig.step()) for _ in range(5)]
    assert seen == [[(1, 0, 5)], [(1, 5, 5)], [(1, 10, 2)], [(1, 12, 1)], [(1, 13, 1)]]
    assert [s.slices[0].n_head for s in rig.steps] == [0, 0, 1, 1, 1]
    assert rig.results[1].reason == "length"
    assert len(rig.results[1].ids) == 3
    assert not rig.engine.has_work


def test_output_is_that_of_the_script_whatever_the_chunk():
    r = request(1, 23, 20, eos_ids=[5], seed=9)
    want = expected(r, list(r.known), 200)
    for chunk in (1, 3, 4, 16):
        rig = Rig(rows=16, chunk=chunk)
        rig.add(request(1, 23, 20, eos_ids=[5], seed=9))
        result = rig.finish()[1]
        assert (result.ids, result.reason) == (want.ids, want.reason)


def test_decodes_come_before_prompts_and_prompts_share_the_rest():
    rig = Rig(rows=8)
    rig.add(request(1, 4), request(2, 20), request(3, 20))
    assert shapes(rig.step()) == [(1, 0, 4), (2, 0, 4)]
    assert shapes(rig.step()) == [(1, 4, 1), (2, 4, 4), (3, 0, 3)]
    assert shapes(rig.step()) == [(1, 5, 1), (2, 8, 4), (3, 3, 3)]
    assert rig.steps[1].new[0].id == 3


def test_slices_are_in_rank_order_whatever_their_kind():
    rig = Rig(rows=16, chunk=4)
    rig.add(request(1, 12), request(2, 3))
    rig.step()
    assert shapes(rig.step()) == [(1, 4, 4), (2, 3, 1)]


def test_lower_priority_class_goes_first():
    rig = Rig(seqs=1)
    rig.add(request(1, 4, 2, priority=1), request(2, 4, 2, priority=0))
    assert shapes(rig.step()) == [(2, 0, 4)]


def test_the_state_is_sent_once_and_taken_back_once():
    rig = Rig()
    rig.add(request(1, 6, 2, ignore_eos=True, choice=3, seed=11))
    first, second = rig.step(), rig.step()
    (state,) = first.new
    assert (state.id, state.choice, state.seed, state.n_prompt) == (1, 3, 11, 6)
    assert len(unpack_ids(state.ids)) == 6
    assert second.new == ()
    assert second.gone == ()
    rig.add(request(2, 3, 1))
    assert rig.step().gone == (1,)
    rig.add(request(3, 3, 1))
    assert rig.step().gone == (2,)


def test_at_most_max_seqs_run():
    rig = Rig(seqs=2)
    rig.add(*(request(i, 3, 4, ignore_eos=True) for i in range(5)))
    while rig.engine.has_work:
        step = rig.step()
        assert len(step.slices) <= 2
    assert all(len(r.ids) == 4 for r in rig.results.values())


def test_a_head_that_does_not_fit_is_passed_by_smaller_ones_a_bounded_number_of_times():
    rig = Rig(blocks=40, seqs=2)
    rig.add(request(1, 100, 60, ignore_eos=True), request(2, 100, 1))
    rig.add(*(request(i, 2, 1) for i in range(3, 60)))
    rig.finish()
    order = [state.id for step in rig.steps for state in step.new]
    assert order[:18] == [1, *range(3, 19), 2]
    assert order[18:] == list(range(19, 60))


def test_the_watermark_is_kept_free_only_while_others_run():
    rig = Rig(blocks=10, watermark=0.5)
    rig.add(request(1, 30, 2), request(2, 4, 2))
    rig.step()
    assert [r.id for r in rig.scheduler.running] == [1]


def preempting_rig():
    """Two requests that together outgrow 8 blocks of 4 tokens."""
    rig = Rig(blocks=8)
    rig.add(request(1, 10, 14, ignore_eos=True), request(2, 10, 14, ignore_eos=True, seed=3))
    return rig


def test_the_worst_rank_gives_way_and_is_computed_again():
    rig = preempting_rig()
    results = rig.finish()
    assert rig.scheduler.stats.preemptions >= 1
    for id, seed in ((1, 0), (2, 3)):
        want = expected(request(id, 10, 14, seed=seed), request(id, 10).known, 200)
        assert results[id].ids == want.ids
    assert results[1].finals[0].summary.preemptions == 0
    assert results[2].finals[0].summary.preemptions >= 1
    assert rig.scheduler.stats.recomputed_tokens > 0


def test_a_preempted_request_is_gone_and_new_again_with_all_it_knows():
    rig = preempting_rig()
    rig.finish()
    gone_at = next(step.index for step in rig.steps if 2 in step.gone)
    again = [s for step in rig.steps[gone_at:] for s in step.new if s.id == 2]
    assert len(again) >= 1
    assert again[0].n_prompt == 10
    assert len(unpack_ids(again[0].ids)) > 10


def test_nobody_is_admitted_in_a_step_that_preempted():
    rig = preempting_rig()
    while rig.scheduler.stats.preemptions == 0:
        rig.step()
    at = len(rig.steps) - 1
    rig = preempting_rig()
    for _ in range(at):
        rig.step()
    rig.add(request(3, 1, 1))
    step = rig.step()
    assert rig.scheduler.stats.preemptions == 1
    assert step.new == ()
    assert [r.id for r in rig.scheduler.waiting] == [2, 3]
    assert [state.id for state in rig.step().new] == [3]


def test_schedule_leaves_out_what_is_in_flight():
    rig = Rig(rows=8)
    s = rig.scheduler
    rig.add(request(1, 8, 4))
    one = s.schedule(0.0)
    rig.add(request(2, 8, 4))
    two = s.schedule(1.0)
    assert shapes(one) == [(1, 0, 8)]
    assert shapes(two) == [(2, 0, 8)]
    assert s.schedule(2.0) is None
    assert [e.id for e in s.commit(one, rig.runner.execute(one))] == [1]
    three = s.schedule(3.0)
    assert shapes(three) == [(1, 8, 1)]
    s.commit(two, rig.runner.execute(two))
    s.commit(three, rig.runner.execute(three))


def test_a_request_in_flight_is_no_victim():
    """Request 1 needs a block while 2, which has the rest, is in flight: it waits for that step."""
    rig = Rig(blocks=4, rows=10)
    s = rig.scheduler
    rig.add(request(1, 8, 8, ignore_eos=True), request(2, 2, 8, ignore_eos=True))
    one = s.schedule(0.0)
    assert shapes(one) == [(1, 0, 8), (2, 0, 2)]
    two = None
    while two is None or s.kv.pools[0].available:
        s.commit(one, rig.runner.execute(one))
        one = two = s.schedule(0.0)
    ones = s.requests[1]
    s.commit(one, rig.runner.execute(one))
    ones.in_flight = True  # keep 1 out of the next step
    flying = s.schedule(0.0)
    ones.in_flight = False
    assert [piece.id for piece in flying.slices] == [2]
    while ones.computed % 4:
        step = s.schedule(0.0)
        s.commit(step, rig.runner.execute(step))
    assert s.schedule(0.0) is None
    assert s.stats.preemptions == 0
    s.commit(flying, rig.runner.execute(flying))
    assert [piece.id for piece in s.schedule(0.0).slices] == [1]
    assert s.stats.preemptions == 1


def test_commit_wants_the_step_it_gave():
    rig = Rig()
    rig.add(request(1, 3))
    step = rig.scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="0 outputs for 1 slices"):
        rig.scheduler.commit(step, StepOutput(0.0, ()))
    output = rig.runner.execute(step)
    rig.scheduler.commit(step, output)
    with pytest.raises(ValueError, match="not in flight"):
        rig.scheduler.commit(step, output)


def test_a_failed_step_does_not_take_back_who_came_again_behind_it():
    """Request 2 was preempted before step one and sent anew in step two; step one then fails."""
    rig = Rig()
    s = rig.scheduler
    rig.add(request(1, 5, 9))
    one = msgspec.structs.replace(s.schedule(0.0), gone=(2, 77))
    rig.add(request(2, 5, 9, ignore_eos=True))
    two = s.schedule(1.0)
    assert [state.id for state in two.new] == [2]
    s.fail(one, "no power")
    s.commit(two, rig.runner.execute(two))
    three = s.schedule(2.0)
    assert sorted(three.gone) == [1, 77]
    s.commit(three, rig.runner.execute(three))


def test_drafts_right_and_wrong_change_nothing():
    r = request(1, 5, 30, ignore_eos=True)
    want = expected(r, list(r.known), 200).ids
    rig = Rig(rows=6, seqs=3)
    rig.add(request(1, 5, 30, ignore_eos=True))
    while rig.engine.has_work:
        live = rig.scheduler.requests[1]
        if live.n_output:
            done = live.n_output
            good = want[done : done + 2]
            live.drafts = [*good, 0, 1, 2, 3, 4, 5] if done % 3 else [39, *good]
        rig.step()
    assert rig.results[1].ids == want
    assert len(rig.steps) < 25


def test_drafts_take_no_block_that_another_decode_needs():
    """Both requests are at the end of a block and one block each is left."""
    want = expected(request(1, 7, 9), request(1, 7).known, 200).ids
    for drafts, taken in ((5, 0), (3, 3)):  # they need two blocks, or one
        rig = Rig(blocks=6)
        rig.add(request(1, 7, 9, ignore_eos=True), request(2, 7, 9, ignore_eos=True))
        rig.step()
        rig.step()
        assert rig.scheduler.kv.pools[0].available == 2
        rig.scheduler.requests[1].drafts = want[2 : 2 + drafts]
        step = rig.step()
        assert [piece.id for piece in step.slices] == [1, 2]
        assert step.slices[0].n_drafts == taken
        assert rig.scheduler.stats.preemptions == 0
