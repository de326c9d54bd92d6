"""How a request ends: stops, lengths, aborts, errors; and what its summary says."""

import pytest

from spola.backends.null import Cost, NullRunner
from spola.core.runner import Capabilities
from spola.core.step import SliceOutput, StepOutput
from support.engine_rig import FULL, Rig, expected, request, small_static, window


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
