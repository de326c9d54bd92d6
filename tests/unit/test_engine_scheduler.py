"""The order of a step: decodes, prompts, admission; preemption, aborts and the protocol with the backend."""

import msgspec
import pytest

from spola.backends.null import Cost, NullRunner
from spola.core.errors import CapacityError, ConfigError, RequestError
from spola.core.runner import Capabilities
from spola.core.step import SliceOutput, StepOutput, unpack_ids
from spola.engine.limits import Limits
from spola.engine.scheduler import Scheduler
from support.engine_rig import FULL, Rig, expected, request, small_static, window


def shapes(step):
    """(id, start, rows) of each slice."""
    return [(s.id, s.start, s.n) for s in step.slices]


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


# Aborts


def test_abort_while_waiting_prefilling_and_decoding():
    rig = Rig(rows=8, seqs=2)
    rig.add(request(1, 4), request(2, 30), request(3, 30))
    rig.step()
    rig.step()
    for id in (3, 2, 1, 1, 99):
        rig.engine.abort(id)
    rig.take(rig.engine.step(9.0))
    assert {id: r.reason for id, r in rig.results.items()} == {1: "abort", 2: "abort", 3: "abort"}
    assert all(pool.used == 0 for pool in rig.scheduler.kv.pools)
    assert rig.scheduler.stats.aborted == 3
    rig.add(request(4, 3, 1))
    assert set(rig.step().gone) == {1, 2}


def test_abort_in_flight_takes_effect_when_the_step_comes_back():
    rig = Rig(rows=8)
    rig.add(request(1, 20))
    step = rig.scheduler.schedule(0.0)
    rig.scheduler.abort(1)
    rig.scheduler.abort(1)
    assert rig.scheduler.kv.pools[0].used > 0
    (event,) = rig.scheduler.commit(step, rig.runner.execute(step))
    assert (event.id, event.finish_reason, event.ids) == (1, "abort", ())
    assert rig.scheduler.kv.pools[0].used == 0


# Ends


def test_an_end_of_sequence_id_stops_and_is_named():
    r = request(1, 5, 50)
    first = expected(r, list(r.known), 200).ids[:3]
    for fields, stops in (
        ({"eos_ids": [first[2]]}, True),
        ({"stop_token_ids": (first[2],)}, True),
        ({"stop_token_ids": (first[2],), "ignore_eos": True}, True),
        ({"eos_ids": [first[2]], "ignore_eos": True}, False),
    ):
        rig = Rig()
        rig.add(request(1, 5, 50, **fields))
        result = rig.finish()[1]
        if stops:
            at = first.index(first[2]) + 1
            assert (result.ids, result.reason) == (first[:at], "stop")
            assert result.finals[0].stop_id == first[2]
        else:
            assert (len(result.ids), result.reason) == (50, "length")
            assert result.finals[0].stop_id is None


def test_length_by_tokens_by_model_and_by_cache():
    for rig, tokens, most in (
        (Rig(), 7, 7),
        (Rig(max_len=20), None, 15),
        (Rig(max_len=20), 100, 15),
        (Rig(blocks=4), None, 12),  # 16 positions; the last token needs none
        (Rig(capabilities=small_static(max_total_context=16)), None, 12),
        (Rig(blocks=(64, 6), groups=(FULL, window(8)), rows=8), 100, 100),  # windows do not bound it
    ):
        rig.add(request(1, 5, tokens, ignore_eos=True))
        result = rig.finish()[1]
        assert (len(result.ids), result.reason) == (most, "length")


def test_the_summary_counts():
    rig = Rig(rows=4, seqs=2)
    rig.add(request(1, 10, 3, ignore_eos=True, arrival_s=-2.0))
    summary = rig.finish()[1].finals[0].summary
    assert (summary.n_prompt, summary.n_output, summary.n_cached) == (10, 3, 0)
    assert summary.arrival_s == -2.0
    assert summary.scheduled_s == 0.0
    assert 2.0 < summary.first_token_s < 3.0
    assert 4.0 < summary.finished_s < 5.0


def test_time_does_not_run_back_when_a_backend_states_longer_steps_than_the_clock_saw():
    caps = Capabilities(device="null", block_size=4)
    rig = Rig(runner=NullRunner(capabilities=caps, cost=Cost(flops_per_s=1e8)))  # 2.7 s a row
    rig.add(request(1, 20, 2, ignore_eos=True))
    summary = rig.finish()[1].finals[0].summary
    assert summary.first_token_s > 50
    assert summary.finished_s >= summary.first_token_s


def test_stops_cut_the_rest_of_an_accepted_run():
    r = request(1, 5, 50)
    ids = expected(r, list(r.known), 200).ids[:4]
    assert len(set(ids)) == 4
    rig = Rig()
    rig.add(request(1, 5, 50, stop_token_ids=(ids[2],)))
    rig.step()
    rig.scheduler.requests[1].drafts = ids[1:4]
    step = rig.step()
    assert (step.slices[0].n, step.slices[0].n_drafts, step.slices[0].n_head) == (4, 3, 4)
    assert rig.results[1].ids == ids[:3]
    assert rig.results[1].reason == "stop"


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


# Refusals


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"prompt": []}, RequestError, "empty"),
        ({"prompt": [2**31]}, RequestError, "32-bit"),
        ({"prompt": 200}, RequestError, "200 tokens; prompt and output together can have 200"),
        ({"prompt": 150}, CapacityError, r"150 tokens of KV cache \(38 blocks of 4\).* 128 \(32 blocks\)"),
        ({"prompt": [40]}, RequestError, "token 40 is not in the vocabulary of 40"),
        ({"prompt": [-1]}, RequestError, "token -1"),
        ({"prompt": 3, "stop_token_ids": (40,)}, RequestError, "stop_token_ids: token 40"),
        ({"prompt": 1, "want": "score"}, RequestError, "nothing to score from position 0 of 1"),
        ({"prompt": 5, "want": "score", "head_from": 4}, RequestError, "nothing to score"),
        ({"prompt": 5, "want": "logits", "head_from": 5}, RequestError, "nothing to compute"),
    ],
)
def test_what_can_never_run_is_refused_and_harms_nobody(fields, error, text):
    rig = Rig(blocks=32)
    rig.add(request(1, 4, 3, ignore_eos=True))
    with pytest.raises(error, match=text):
        rig.add(request(2, **fields))
    assert rig.finish().keys() == {1}


def test_what_exceeds_the_context_of_the_backend_is_refused():
    rig = Rig(capabilities=small_static(max_total_context=64))
    rig.add(request(1, 64, 1))
    with pytest.raises(CapacityError, match="65 positions; this backend computes at most 64"):
        rig.add(request(2, 65, 1))
    assert len(rig.finish()[1].ids) == 1


def test_an_id_is_used_once():
    rig = Rig()
    r = request(1, 3)
    rig.add(r)
    for twice in (r, request(1, 4)):
        with pytest.raises(ValueError, match="request 1 was added before"):
            rig.add(twice)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_step_tokens": 0}, "max_step_tokens must be at least 1"),
        ({"max_seqs": 0}, "max_seqs must be at least 1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"watermark": 1.0}, "watermark must be from 0 to below 1"),
        ({"max_seqs": 65}, r"max_step_tokens \(64\) must be at least max_seqs \(65\)"),
    ],
)
def test_bad_limits_are_named(fields, text):
    with pytest.raises(ConfigError, match=text):
        Limits(**({"max_step_tokens": 64, "max_seqs": 8, "max_model_len": 100} | fields))


def test_a_chunk_beyond_the_step_is_refused():
    limits = Limits(max_step_tokens=16, max_seqs=4, max_model_len=100)
    caps = Capabilities(device="null", prefill_chunk=32)
    with pytest.raises(ConfigError, match="chunks of exactly 32 tokens, more than max_step_tokens"):
        Scheduler(limits, caps, (FULL,), (8,))


# Static shapes


def test_static_shapes_alternate_and_keep_their_chunk():
    rig = Rig(capabilities=small_static(), rows=16)
    rig.add(request(1, 3, 12, ignore_eos=True), request(2, 20, 4, ignore_eos=True))
    seen = [shapes(rig.step()) for _ in range(7)]
    assert seen[0] == [(1, 0, 3)]
    assert [(2, 0, 8)] in seen
    assert [(2, 8, 8)] in seen
    assert [(2, 16, 4)] in seen
    assert all(len(s) == 1 for s in seen[:4])
    rig.finish()


def test_a_fixed_chunk_that_decodes_would_crowd_out_alternates_too():
    caps = Capabilities(device="null", block_size=4, prefill_chunk=16)
    rig = Rig(capabilities=caps, rows=16, seqs=4)
    rig.add(request(1, 3, 40, ignore_eos=True), request(2, 40, 1))
    rig.finish()
    done = {id: result.finals[0].summary.finished_s for id, result in rig.results.items()}
    assert done[2] < done[1]


def test_the_context_bound_holds_back_admission():
    rig = Rig(capabilities=small_static(max_total_context=40), rows=16)
    rig.add(request(1, 20, 3, ignore_eos=True), request(2, 20, 3, ignore_eos=True))
    rig.finish()
    order = [s.id for step in rig.steps for s in step.slices]
    assert order == sorted(order)


# Faults


def test_an_error_of_one_slice_ends_that_request_alone():
    rig = Rig()
    rig.add(request(1, 4, 3, ignore_eos=True), request(2, 4, 3, ignore_eos=True))
    step = rig.scheduler.schedule(0.0)
    out = rig.runner.execute(step)
    bad = StepOutput(out.elapsed_s, (SliceOutput(error="non-finite logits"), out.slices[1]))
    rig.take(rig.scheduler.commit(step, bad))
    assert rig.results[1].finals[0].error == "non-finite logits"
    rig.finish()
    assert len(rig.results[2].ids) == 3


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (SliceOutput(), "0 tokens where 1 were due"),
        (SliceOutput(ids=(1, 2)), "2 tokens where 1 were due"),
        (SliceOutput(ids=(1,), accepted=1), "1 accepted drafts of 0"),
    ],
)
def test_an_output_of_the_wrong_shape_ends_its_request(out, text):
    rig = Rig()
    rig.add(request(1, 4))
    step = rig.scheduler.schedule(0.0)
    (event,) = rig.scheduler.commit(step, StepOutput(0.0, (out,)))
    assert event.finish_reason == "error"
    assert text in event.error


def test_no_more_run_than_the_largest_bucket_takes():
    rig = Rig(capabilities=Capabilities(device="null", block_size=4, batch_buckets=(1, 3)))
    rig.add(*(request(i, 3, 5, ignore_eos=True) for i in range(7)))
    rig.finish()
    assert max(len(step.slices) for step in rig.steps) == 3


def test_a_long_decode_and_a_prompt_share_the_context_bound():
    caps = Capabilities(device="null", block_size=4, max_total_context=40)
    rig = Rig(capabilities=caps)
    rig.add(request(1, 16, 22, ignore_eos=True), request(2, 16, 22, ignore_eos=True))
    results = rig.finish()
    assert all(len(r.ids) == 22 for r in results.values())
    both = [step for step in rig.steps if len(step.slices) == 2]
    assert both
    assert all(sum(s.start + s.n for s in step.slices) <= 40 for step in rig.steps)


def test_a_one_token_prompt_does_not_join_a_chunk_where_kinds_alternate():
    caps = Capabilities(device="null", block_size=4, mixed_batch=False)
    rig = Rig(capabilities=caps, rows=8)
    rig.add(request(1, 12, 2, ignore_eos=True), request(2, 1, 2, ignore_eos=True))
    rig.finish()
    for step in rig.steps:
        assert len({s.n == 1 for s in step.slices}) == 1


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
