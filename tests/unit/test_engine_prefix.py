"""The prefix cache: what is found, what is copied, what must not be found, and in what order blocks go."""

import pytest

from spola.core.step import BlockCopy
from spola.engine import prefix
from spola.engine.pool import BlockPool
from spola.engine.prefix import PrefixIndex, root_key
from support.engine_rig import FULL, Rig, expected, request, small_static, window

TEXT = [(5 * i + i * i) % 40 for i in range(60)]


def run(rig, id, prompt, max_tokens=1, **fields):
    """Run one request to its end; its n_cached and the steps it took."""
    first = len(rig.steps)
    r = request(id, prompt, max_tokens, ignore_eos=True, **fields)
    want = expected(r, prompt, 200) if r.want == "sample" else None
    rig.add(r)
    result = rig.finish()[id]
    if want is not None:
        assert result.ids == want.ids
    return result.finals[0].summary.n_cached, rig.steps[first:]


def test_a_second_prompt_starts_where_the_first_one_differs():
    rig = Rig()
    assert run(rig, 1, TEXT[:20])[0] == 0
    other = [*TEXT[:14], 39, 38, 37, 36]
    cached, steps = run(rig, 2, other)
    assert cached == 14
    assert [(s.slices[0].start, s.slices[0].n) for s in steps] == [(14, 4)]
    # Three blocks are shared, the fourth is copied and gone on in.
    (copy,) = steps[0].copies
    assert copy.source == rig.steps[0].slices[0].tables[0][12]
    assert rig.scheduler.stats.cached_tokens == 14
    assert rig.scheduler.stats.queried_tokens == 38


def test_a_prompt_that_is_there_in_full_computes_one_token():
    for n in (16, 17, 19, 20):
        rig = Rig()
        run(rig, 1, TEXT[:20])
        cached, steps = run(rig, 2, TEXT[:n])
        assert cached == n - 1
        assert [s.slices[0].n for s in steps] == [1]
        assert len(steps[0].copies) == (n != 17)


def test_generated_tokens_are_found_by_the_next_turn():
    rig = Rig()
    run(rig, 1, TEXT[:10], 11)
    answer = rig.results[1].ids
    # 20 tokens have K and V: the last one generated was never computed.
    cached, _ = run(rig, 2, [*TEXT[:10], *answer, 1, 2, 3])
    assert cached == 20


def test_drafts_that_were_wrong_are_never_found():
    rig = Rig()
    r = request(1, TEXT[:6], 3, ignore_eos=True)
    rig.add(r)
    rig.step()
    r.drafts = [7, 8, 9, 10, 11]
    rig.finish()
    cached, _ = run(rig, 2, [*TEXT[:6], rig.results[1].ids[0], 7, 8, 9, 10, 11])
    assert cached <= 7


@pytest.mark.parametrize("want", ["score", "logits", "embed_last", "embed_mean"])
def test_requests_that_need_every_row_compute_it_but_leave_it_behind(want):
    rig = Rig()
    run(rig, 1, TEXT[:20])
    cached, steps = run(rig, 2, TEXT[:20], want=want)
    assert cached == 0
    assert steps[0].slices[0].start == 0
    rig.scheduler.cache.clear()
    run(rig, 3, TEXT[:20], want=want)
    assert run(rig, 4, TEXT[:17])[0] == 16


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({}, {}, 15),
        ({"salt": "a"}, {"salt": "a"}, 15),
        ({"salt": "a"}, {"salt": "b"}, 0),
        ({"salt": "a"}, {}, 0),
        ({"salt": ""}, {}, 0),
        ({"salt": "a"}, {"adapter": "a"}, 0),
        ({"adapter": "a"}, {}, 0),
        ({"adapter": "a", "salt": "b"}, {"adapter": "b", "salt": "a"}, 0),
        ({"adapter": "a", "salt": "b"}, {"adapter": "a", "salt": "b"}, 15),
    ],
)
def test_salts_and_adapters_separate(first, second, found):
    rig = Rig()
    run(rig, 1, TEXT[:16], **first)
    cached, steps = run(rig, 2, TEXT[:16], **second)
    assert cached == found
    before = set(rig.steps[0].slices[0].tables[0][::4])
    if not found:
        assert not before & set(steps[0].slices[0].tables[0][::4])


def test_kinds_of_extras_do_not_mix():
    keys = [
        root_key(extras)
        for extras in (
            (),
            [("salt", "a")],
            [("adapter", "a")],
            [("salt", "ab")],
            [("salt", "a"), ("adapter", "b")],
            [("salt", "b"), ("adapter", "a")],
            [("sal", "ta")],
            [("salt", "")],
        )
    ]
    assert len(set(keys)) == len(keys)
    assert root_key([("a", "b"), ("c", "d")]) == root_key([("c", "d"), ("a", "b")])


def test_equal_hashes_of_different_texts_are_not_taken_for_equal(monkeypatch):
    monkeypatch.setattr(prefix, "next_key", lambda parent, tokens: b"same for all")
    rig = Rig()
    run(rig, 1, TEXT[:9])
    other = [1, 2, 3, 4, *TEXT[4:9]]
    assert run(rig, 2, other)[0] == 0


def test_the_least_recently_used_text_goes_first_and_its_end_before_its_beginning():
    rig = Rig(blocks=8)
    run(rig, 1, TEXT[:13])  # 3 full blocks stay
    run(rig, 2, [9, *TEXT[:12]])  # 3 more: two are unhashed
    run(rig, 1001, [8, *TEXT[:8]])  # takes those two and the end of the first text
    cached, _ = run(rig, 1002, TEXT[:13])
    assert cached == 8


def test_a_block_that_nobody_uses_counts_as_free_only_once():
    """A hit on a free block takes it from those that are left for the rest of the prompt."""
    rig = Rig(blocks=6, seqs=2)
    run(rig, 1, TEXT[:8])
    rig.add(request(2, [30] * 12, 8, ignore_eos=True))  # 4 blocks with the token after the prompt
    rig.step()
    # 2 blocks are free, both of the text: the prompt of 12 would need those and 2 more.
    rig.add(request(3, TEXT[:12], 1))
    rig.step()
    assert [r.id for r in rig.scheduler.running] == [2]
    assert [r.computed for r in rig.scheduler.waiting] == [0]
    rig.finish()
    assert rig.results[3].ids == expected(request(3, TEXT[:12], 1), TEXT[:12], 200).ids


def test_a_preempted_request_finds_what_is_left_of_itself():
    rig = Rig(blocks=10)
    rig.add(request(1, 10, 20, ignore_eos=True), request(2, 10, 20, ignore_eos=True, seed=3))
    rig.finish()
    stats = rig.scheduler.stats
    assert stats.preemptions >= 1
    assert stats.cached_tokens > 0
    again = [s for step in rig.steps for s in step.slices if s.id == 2 and s.start and s.n > 1]
    assert again, "computed again from the start"


def test_windows_need_their_last_blocks_only():
    rig = Rig(blocks=(40, 40), groups=(FULL, window(6)))
    run(rig, 1, TEXT[:33])
    full, windowed = rig.scheduler.cache.indexes
    assert len(full) == 8
    for block in [b for b, key in enumerate(windowed._pool.hashes) if key is not None][:6]:
        windowed._forget(block)
    cached, steps = run(rig, 2, [*TEXT[:32], 1, 2, 3])
    assert cached == 32
    assert steps[0].slices[0].tables[1][: 4 * 6] == b"\xff" * 24


def test_windows_without_their_last_blocks_shorten_the_hit():
    rig = Rig(blocks=(40, 40), groups=(FULL, window(6)))
    run(rig, 1, TEXT[:33])
    windowed = rig.scheduler.cache.indexes[1]
    windowed._forget(windowed.find(*_keys(rig, 7)))
    cached, _ = run(rig, 2, [*TEXT[:32], 1, 2, 3])
    assert cached == 28


def _keys(rig, i):
    """Arguments of ``find`` for block ``i`` of TEXT."""
    keys = [root_key(())]
    blocks = [request(0, TEXT[4 * j : 4 * j + 4]).known.tobytes() for j in range(i + 1)]
    for block in blocks:
        keys.append(prefix.next_key(keys[-1], block))
    return keys[i + 1], keys[i], blocks[i]


def test_static_shapes_start_at_whole_chunks_or_at_the_last_token():
    rig = Rig(rows=32, capabilities=small_static())
    run(rig, 1, TEXT[:40])
    cached, steps = run(rig, 2, [*TEXT[:23], 1, 2, 3])
    assert cached == 16
    assert [(s.slices[0].start, s.slices[0].n) for s in steps] == [(16, 8), (24, 2)]
    cached, steps = run(rig, 3, TEXT[:38])
    assert cached == 37
    assert [s.slices[0].n for s in steps] == [1]


def test_without_the_cache_nothing_is_kept():
    rig = Rig(prefix_cache=False)
    run(rig, 1, TEXT[:20])
    assert run(rig, 2, TEXT[:20])[0] == 0
    assert not any(step.copies for step in rig.steps)
    assert all(key is None for key in rig.scheduler.kv.pools[0].hashes)
    assert rig.scheduler.stats.queried_tokens == 0


def test_a_copy_reads_before_its_source_is_reused():
    """In a full pool the block to copy from is itself the one that is taken for the copy."""
    rig = Rig(blocks=2)
    run(rig, 1, TEXT[:7])
    cached, steps = run(rig, 2, TEXT[:3])
    assert cached == 2
    assert isinstance(steps[0].copies, tuple)
    assert all(isinstance(copy, BlockCopy) and copy.source != copy.target for copy in steps[0].copies)


def test_the_index_forgets_what_the_pool_reuses():
    pool = BlockPool(2)
    index = PrefixIndex(pool)
    block = pool.take()
    index.publish(block, prefix.next_key(b"", b"abcd"), b"", b"abcd")
    pool.drop(block)
    index.check()
    assert index.longest(b"", b"abcdefgh") == (1, block)
    assert pool.take() != block
    assert pool.take() == block
    assert len(index) == 0
    assert index.longest(b"", b"abcd") == (0, -1)
    index.check()


def test_prompts_that_come_together_compute_their_beginning_once():
    rig = Rig(rows=64)
    some = [request(i, [*TEXT[:30], i, i, i], 2, ignore_eos=True) for i in range(1, 6)]
    rig.add(*some, request(9, 5, 1))
    first, second = rig.step(), rig.step()
    assert {s.id for s in first.slices} == {1, 9}
    assert sorted((s.id, s.start, s.n) for s in second.slices if s.id != 1) == [
        (i, 30, 3) for i in range(2, 6)
    ]
    rig.finish()
    for r in some:
        assert rig.results[r.id].ids == expected(r, list(r.known[:33]), 200).ids


def test_nobody_waits_for_the_blocks_of_another_salt_or_of_a_worse_rank():
    rig = Rig(rows=16)
    rig.add(request(1, TEXT[:40], 1, priority=1))
    rig.step()
    rig.add(request(2, TEXT[:40], 1), request(3, TEXT[:40], 1, priority=1, salt="x"))
    rig.step()
    step = rig.step()
    assert {1, 2} <= {s.id for s in step.slices}
    rig.finish()
    assert rig.results[3].finals[0].summary.n_cached == 0


def test_who_waited_for_blocks_goes_on_alone_when_they_do_not_come():
    rig = Rig(rows=16)
    rig.add(request(1, TEXT[:40], 1), request(2, TEXT[:40], 1))
    assert [s.id for s in rig.step().slices] == [1]
    rig.engine.abort(1)
    rig.finish()
    assert rig.results[2].finals[0].summary.n_cached == 16
