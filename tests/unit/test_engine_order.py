"""Who goes first: classes and ageing, shares of keys, short prompts beside long ones, deadlines."""

import pytest

from spola.engine.fair import FairTags, Order
from support.engine_rig import FULL, Rig, request, small_static, window


def begun(rig):
    return [state.id for step in rig.steps for state in step.new]


def test_a_key_with_many_requests_does_not_hold_up_another_one():
    rig = Rig(seqs=1)
    rig.add(*(request(i, 4, 4, key="many", ignore_eos=True) for i in range(1, 21)))
    rig.step()
    rig.add(*(request(i, 4, 4, key="few", ignore_eos=True) for i in range(31, 34)))
    rig.finish()
    order = begun(rig)
    assert order.index(31) <= 2
    assert order.index(33) <= 6
    assert [i for i in order if i < 30] == list(range(1, 21))


def test_keys_get_equal_shares_of_tokens_not_of_requests():
    rig = Rig(seqs=1)
    for i in range(12):
        rig.add(request(100 + i, 4, 28, key="long", ignore_eos=True))
    for i in range(48):
        rig.add(request(200 + i, 4, 4, key="short", ignore_eos=True))
    rig.finish()
    order = begun(rig)
    # One long request costs as much as four short ones.
    half = order[: len(order) // 2]
    assert sum(i < 200 for i in half) == pytest.approx(6, abs=1)


def test_one_key_is_first_come_first_served():
    rig = Rig(seqs=1)
    rig.add(*(request(i, 1 + (7 * i) % 13, 1 + i % 3) for i in range(1, 20)))
    rig.finish()
    assert begun(rig) == list(range(1, 20))


def test_a_key_that_was_idle_has_saved_nothing_up():
    tags = FairTags()
    for _ in range(10):
        tags.begun(tags.tag("a", 10.0))
    assert tags.now == 90.0
    assert tags.tag("b", 10.0) == 90.0
    assert tags.tag("b", 10.0) == 100.0
    assert tags.tag("a", 10.0) == 100.0


def test_keys_that_are_not_ahead_are_forgotten():
    tags = FairTags()
    for i in range(5000):
        tags.begun(tags.tag(f"key{i}", 1.0))
        tags.begun(tags.now + 1.0)
    assert len(tags._finish) <= 1100


def test_a_lower_class_rises_while_it_waits_and_is_served():
    rig = Rig(seqs=1, ageing_s=10.0)
    rig.add(request(1, 4, 4, priority=2, arrival_s=0.0))
    for i in range(40):
        rig.add(request(100 + i, 4, 4, ignore_eos=True, arrival_s=rig.now))
        rig.step()
        rig.step()
        if 1 in rig.results and rig.results[1].finals:
            break
    assert 10 <= i < 40
    assert begun(rig).index(1) >= 5


def test_ageing_lifts_nobody_above_the_best_class_that_is_there():
    order = Order(10.0)
    some = [request(i, 3, 1, priority=5) for i in range(3)]
    for r in some:
        order.arrive(r)
    assert not order.age(some, some, 100.0)
    better = request(9, 3, 1, priority=4)
    order.arrive(better)
    assert order.age(some, [*some, better], 200.0)
    assert {r.rank.priority for r in some} == {4}
    assert better.rank.priority == 4


def test_what_runs_does_not_rise():
    rig = Rig(ageing_s=5.0, max_len=190)
    rig.add(request(1, 4, 100, priority=3, ignore_eos=True), request(2, 4, 100, ignore_eos=True))
    for _ in range(50):
        rig.step()
    assert [r.rank.priority for r in rig.scheduler.running] == [0, 3]


def test_a_better_class_takes_the_place_of_the_worst_and_nobody_takes_that_of_an_equal():
    rig = Rig(seqs=2)
    rig.add(request(1, 4, 20, ignore_eos=True), request(2, 4, 20, priority=1, ignore_eos=True))
    for _ in range(4):
        rig.step()
    rig.add(request(3, 4, 20, ignore_eos=True), request(4, 4, 20, ignore_eos=True))
    step = rig.step()
    assert [state.id for state in step.new] == [3]
    assert step.gone == (2,)
    assert [r.id for r in rig.scheduler.running] == [1, 3]
    rig.finish()
    summaries = {i: result.finals[0].summary for i, result in rig.results.items()}
    assert [summaries[i].preemptions for i in (1, 2, 3, 4)] == [0, 1, 0, 0]


def test_nobody_gives_way_when_that_would_not_be_enough():
    rig = Rig(blocks=20, seqs=4)
    rig.add(request(1, 40, 8, ignore_eos=True), request(2, 8, 8, priority=1, ignore_eos=True))
    rig.step()
    rig.step()
    rig.add(request(3, 70, 1))
    rig.step()
    assert rig.scheduler.stats.preemptions == 0
    rig.finish()


def test_somebody_gives_way_for_the_blocks_of_a_window():
    """Alone, 40 tokens take all 11 blocks of the window group: their own 4, and 7 for the rows of a step."""
    for n, gone in ((8, ()), (40, (1,))):
        rig = Rig(blocks=(64, 11), groups=(FULL, window(8)), seqs=4)
        rig.add(request(1, 40, 20, priority=1, ignore_eos=True))
        for _ in range(4):
            rig.step()
        rig.add(request(2, n, 4))
        step = rig.step()
        assert [state.id for state in step.new] == [2]
        assert step.gone == gone
        rig.finish()


def test_a_short_prompt_passes_through_beside_a_long_one():
    rig = Rig(rows=16, max_len=200)
    rig.add(request(1, 160, 1))
    rig.step()
    rig.step()
    rig.add(request(2, 12, 1))
    first, second = rig.step(), rig.step()
    assert [(s.id, s.n) for s in first.slices] == [(1, 8), (2, 8)]
    assert [(s.id, s.n) for s in second.slices] == [(1, 12), (2, 4)]
    assert rig.results[2].finals
    assert rig.step().slices[0].n == 16


def test_while_others_wait_no_prompt_has_more_than_half_and_the_shortest_comes_next():
    rig = Rig(rows=16, blocks=128, max_len=200)
    rig.add(request(1, 160, 1), request(2, 100, 1), request(3, 50, 1))
    for _ in range(9):
        step = rig.step()
        shares = {s.id: s.n for s in step.slices}
        assert shares[1] <= 8
        assert sum(shares.values()) == 16
    # The first keeps its half; the third, shorter than the second, has come through.
    assert 3 in rig.results
    assert rig.scheduler.requests[1].computed == 9 * 8


def test_fixed_chunks_take_turns():
    rig = Rig(rows=16, capabilities=small_static(max_total_context=190), max_len=100)
    rig.add(request(1, 80, 1))
    rig.step()
    rig.add(request(2, 24, 1))
    for _ in range(8):
        rig.step()
    assert 2 in rig.results
    assert 1 not in rig.results
    rig.finish()


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_a_deadline_ends_a_request_wherever_it_is(steps):
    rig = Rig(rows=8, seqs=1)
    rig.add(request(1, 20, 40, ignore_eos=True, deadline_s=float(steps)))
    rig.add(request(2, 20, 40, ignore_eos=True, deadline_s=12.0), request(3, 3, 2))
    rig.finish()
    final = rig.results[1].finals[0]
    said = len(rig.results[1].ids)
    late = "" if steps else ", before its turn came"
    assert (final.finish_reason, final.error) == ("error", f"the deadline passed after {said} tokens{late}")
    assert rig.results[2].finals[0].error.startswith("the deadline passed")
    assert rig.results[3].reason in ("stop", "length")
    assert rig.scheduler.kv.pools[0].used == 0


def test_a_deadline_in_flight_waits_for_its_step():
    rig = Rig()
    s = rig.scheduler
    rig.add(request(1, 5, 9, deadline_s=1.0))
    step = s.schedule(0.0)
    assert s.schedule(2.0) is None
    assert s.drain() == []
    (event,) = s.commit(step, rig.runner.execute(step))
    assert event.error == "the deadline passed after 0 tokens"
    assert event.ids == ()


def test_shares_follow_weights():
    rig = Rig(seqs=1)
    for i in range(30):
        rig.add(request(100 + i, 4, 4, key="heavy", weight=3.0, ignore_eos=True))
        rig.add(request(200 + i, 4, 4, key="light", ignore_eos=True))
    rig.finish()
    order = begun(rig)[:20]
    assert sum(i < 200 for i in order) == pytest.approx(15, abs=1)


def test_what_has_not_begun_in_time_ends_and_what_has_goes_on():
    rig = Rig(seqs=1)
    rig.add(request(1, 4, 30, ignore_eos=True, start_by_s=3.0))
    rig.add(request(2, 4, 30, ignore_eos=True, start_by_s=3.0))
    rig.finish()
    (first,), (second,) = rig.results[1].finals, rig.results[2].finals
    assert (first.finish_reason, first.late) == ("length", False)
    assert (second.finish_reason, second.late) == ("error", True)
    assert second.error == "the deadline passed after 0 tokens, before its turn came"
    assert second.summary.finished_s < first.summary.finished_s


def test_a_key_leaves_places_for_others_and_fills_them_again_when_alone_no_further():
    rig = Rig(seqs=4, key_seats=3)
    rig.add(*(request(i, 4, 30, ignore_eos=True, key="heavy") for i in range(8)))
    rig.step()
    assert [r.key for r in rig.scheduler.running] == ["heavy"] * 3
    rig.add(request(9, 4, 5, ignore_eos=True, key="light"))
    step = rig.step()
    assert 9 in {piece.id for piece in step.slices}, "another key's request begins at once"
    assert len(rig.scheduler.running) == 4
    rig.finish()
    assert [rig.results[i].reason for i in (*range(8), 9)] == ["length"] * 9
    assert rig.results[9].finals[0].summary.scheduled_s < rig.results[3].finals[0].summary.scheduled_s


def test_nobody_gives_way_to_a_better_class_of_a_key_that_has_its_places():
    rig = Rig(seqs=2, key_seats=1)
    rig.add(
        request(1, 4, 20, ignore_eos=True, key="a"), request(2, 4, 20, ignore_eos=True, key="b", priority=1)
    )
    rig.step()
    rig.add(request(3, 4, 4, ignore_eos=True, key="a", priority=-1))
    rig.step()
    assert {r.id for r in rig.scheduler.running} == {1, 2}
    results = rig.finish()
    assert results[2].finals[0].summary.preemptions == 0
    assert results[3].reason == "length"
