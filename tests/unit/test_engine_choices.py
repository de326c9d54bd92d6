"""The n choices of a request: one prompt computed, blocks shared, ended together."""

import pytest

from spola.core.step import unpack_ids
from support.engine_rig import FULL, Rig, expected, request, small_static, window


def choices(n, length, max_tokens=4, first=1, **fields):
    return [
        request(first + i, [3] * length, max_tokens, ignore_eos=True, choice=i, leader=first, **fields)
        for i in range(n)
    ]


def right(rig, requests):
    for r in requests:
        prompt = list(r.known[: r.n_prompt])
        assert rig.results[r.id].ids == expected(r, prompt, 200).ids


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 15, 16, 17])
def test_the_prompt_is_computed_once_and_its_blocks_are_shared(cache, length):
    rig = Rig(rows=8, prefix_cache=cache)
    some = choices(4, length)
    rig.add(*some)
    rig.finish()
    right(rig, some)
    # The prompt once, and its last token for every other choice.
    assert sum(s.n for step in rig.steps for s in step.slices if s.start < length) == length + 3
    begun = [step for step in rig.steps if any(state.choice for state in step.new)]
    whole = (length - 1) // 4
    for step in begun:
        tables = [list(unpack_ids(s.tables[0])[:whole]) for s in step.slices]
        assert all(table == tables[0] for table in tables)
        # Whoever begins inside of a block has a copy of it.
        assert len(step.copies) == (len(step.new) if (length - 1) % 4 else 0)
    cached = [rig.results[r.id].finals[0].summary.n_cached for r in some]
    assert cached == [0, length - 1, length - 1, length - 1]


def test_choices_wait_for_the_first_and_are_passed_by_others():
    rig = Rig(rows=8, chunk=4)
    some = choices(2, 20)
    rig.add(*some, request(9, 2, 1))
    rig.finish()
    order = [state.id for step in rig.steps for state in step.new]
    assert order == [1, 9, 2]
    right(rig, some)


@pytest.mark.parametrize("end", ["abort of one", "abort of the first", "before the first step"])
def test_abort_ends_all_choices(end):
    rig = Rig(rows=8)
    some = choices(3, 12, 20)
    rig.add(*some, request(9, 3, 2))
    for _ in range(0 if end == "before the first step" else 5):
        rig.step()
    rig.engine.abort(2 if end == "abort of one" else 1)
    rig.finish()
    assert [rig.results[i].reason for i in (1, 2, 3)] == ["abort"] * 3
    assert rig.results[9].reason in ("stop", "length")
    assert rig.scheduler.kv.pools[0].used == 0
    assert not rig.scheduler._choices


def test_the_first_choice_can_end_them_also_when_it_has_ended():
    rig = Rig()
    some = choices(2, 6, 20)
    some[0].params = request(0, 1, 1).params
    rig.add(*some)
    while rig.results.get(1) is None or not rig.results[1].finals:
        rig.step()
    rig.engine.abort(1)
    rig.finish()
    assert rig.results[2].reason == "abort"


def test_when_the_first_fails_the_others_compute_the_prompt_themselves():
    rig = Rig(rows=4, seqs=4)
    some = choices(3, 12)
    rig.add(*some)
    step = rig.scheduler.schedule(0.0)
    rig.runner.execute(step)
    rig.scheduler.fail(step, "no power")
    rig.take(rig.scheduler.drain())
    rig.finish()
    assert rig.results[1].reason == "error"
    right(rig, some[1:])


def test_under_pressure_choices_are_preempted_and_share_again():
    rig = Rig(blocks=10, rows=8)
    some = choices(4, 14, 12)
    rig.add(*some)
    rig.finish()
    right(rig, some)
    assert rig.scheduler.stats.preemptions > 0


def test_windows_and_static_shapes():
    for rig in (
        Rig(blocks=(40, 40), groups=(FULL, window(6))),
        Rig(groups=(window(5),)),
        Rig(rows=32, capabilities=small_static()),
    ):
        some = choices(3, 18)
        rig.add(*some)
        rig.finish()
        right(rig, some)
        assert [rig.results[i].finals[0].summary.n_cached for i in (1, 2, 3)] == [0, 17, 17]


def test_what_is_no_choice_is_refused():
    rig = Rig()
    rig.add(request(1, [1, 2, 3], leader=1))
    for other in (
        request(2, [1, 2, 4], leader=1),
        request(3, [1, 2, 3], leader=1, salt="x"),
        request(4, [1, 2, 3], leader=1, want="embed_last"),
    ):
        with pytest.raises(ValueError, match="no choice of request 1"):
            rig.add(other)
    rig.finish()
    assert set(rig.results) == {1}
