"""Batching modes and the contiguous reservation: the same scheduler with another condition at its door."""

import pytest

from spola.core.errors import ConfigError
from spola.engine.limits import Limits
from support.engine_rig import Rig, request


def crowd(n, **fields):
    return [request(i, 4 + i % 3, 3 + 4 * (i % 4), ignore_eos=True, **fields) for i in range(1, n + 1)]


def batches(rig):
    """Ids that began with nobody else running, with those that joined them."""
    out, live = [], set()
    for step in rig.steps:
        live -= set(step.gone)
        for state in step.new:
            if not live:
                out.append([])
            out[-1].append(state.id)
            live.add(state.id)
    return out


def test_static_begins_a_batch_when_the_last_one_has_ended():
    rig = Rig(seqs=4, batching="static")
    rig.add(*crowd(10))
    rig.finish()
    assert batches(rig) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_static_takes_who_is_there():
    rig = Rig(seqs=4, batching="static")
    rig.add(*crowd(2))
    rig.step()
    rig.add(*(request(i, 3, 2) for i in (11, 12)))
    rig.finish()
    assert batches(rig) == [[1, 2], [11, 12]]


def test_a_batch_larger_than_a_step_is_filled_over_several():
    rig = Rig(seqs=4, rows=8, batching="static")
    rig.add(*(request(i, 12, 9, ignore_eos=True) for i in range(1, 6)))
    rig.finish()
    assert batches(rig) == [[1, 2, 3, 4], [5]]


def test_dynamic_waits_for_a_full_batch_or_for_the_window():
    rig = Rig(seqs=3, batching="dynamic", batch_window_s=5.0)
    rig.add(request(1, 4, 3, ignore_eos=True, arrival_s=0.0))
    assert rig.step() is None
    assert rig.scheduler.wake_at == 5.0
    rig.add(request(2, 4, 3, ignore_eos=True, arrival_s=1.0))
    for _ in range(4):
        assert rig.step() is None
    assert [s.id for s in rig.step().slices] == [1, 2]
    assert rig.scheduler.wake_at is None
    rig.finish()
    now = rig.now
    rig.add(*(request(10 + i, 4, 3, arrival_s=now) for i in range(3)))
    assert [s.id for s in rig.step().slices] == [10, 11, 12]
    rig.finish()


def test_a_deadline_wakes_a_batch_that_waits():
    rig = Rig(seqs=3, batching="dynamic", batch_window_s=50.0)
    rig.add(request(1, 4, 3, deadline_s=2.0))
    assert rig.step() is None
    assert rig.scheduler.wake_at == 2.0
    rig.step()
    rig.step()
    assert rig.results[1].reason == "error"
    assert not rig.engine.has_work


def test_every_mode_gives_the_same_tokens():
    answers = []
    for mode in ({}, {"batching": "static"}, {"batching": "dynamic", "batch_window_s": 3.0}):
        rig = Rig(seqs=4, blocks=12, **mode)
        rig.add(*crowd(12))
        rig.finish()
        answers.append({i: result.ids for i, result in rig.results.items()})
    assert answers[0] == answers[1] == answers[2]


def test_continuous_needs_fewer_steps():
    steps = {}
    for mode in ("continuous", "static"):
        rig = Rig(seqs=4, batching=mode)
        rig.add(*crowd(24))
        rig.finish()
        steps[mode] = len(rig.steps)
    assert steps["continuous"] < 0.8 * steps["static"]


def test_contiguous_reserves_for_the_longest_request_and_runs_fewer():
    most = {}
    for reservation in ("paged", "contiguous"):
        rig = Rig(blocks=32, seqs=8, max_len=64, reservation=reservation, prefix_cache=False, rows=32)
        rig.add(*crowd(16))
        most[reservation] = 0
        while rig.engine.has_work:
            rig.step()
            most[reservation] = max(most[reservation], len(rig.scheduler.running))
        if reservation == "contiguous":
            assert rig.scheduler.stats.preemptions == 0
    assert most["contiguous"] == 2  # 16 blocks each
    assert most["paged"] >= 6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batching": "both"}, "batching must be one of continuous, dynamic, static"),
        ({"batching": "dynamic", "batch_window_s": -1.0}, "batch_window_s must be at least 0"),
        ({"batch_window_s": 1.0}, "for dynamic batching only"),
        ({"reservation": "segments"}, "reservation must be one of paged, contiguous"),
        ({"reservation": "contiguous"}, "turn prefix_cache off"),
        ({"ageing_s": 0.0}, "ageing_s must be above 0"),
    ],
)
def test_contradictions_are_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        Limits(max_step_tokens=8, max_seqs=2, max_model_len=9, **fields)
