"""Block tables over pools: promises, windows, and failing without a trace."""

from types import SimpleNamespace

import pytest

from spola.core.errors import ConfigError
from spola.engine.kv import GONE, KvSpace
from support.engine_rig import FULL, window


def owner():
    return SimpleNamespace(tables=())


def space(*counts, groups=(FULL,), size=4, max_slice=8):
    return KvSpace(groups, counts, block_size=size, max_slice=max_slice)


def test_what_is_promised_is_taken_from_nobody_else():
    kv = space(10)
    a, b = owner(), owner()
    assert kv.reserve(a, 30, spare=(0,))
    assert (kv.pools[0].free, kv.pools[0].available) == (10, 2)
    assert not kv.reserve(b, 9, spare=(0,))
    assert b.tables == ()
    assert kv.reserve(b, 8, spare=(0,))
    assert not kv.extend(b, 9)
    assert kv.extend(a, 30)
    kv.check([a, b])
    kv.release(a)
    kv.release(a)
    assert kv.extend(b, 40)
    kv.check([b])


def test_the_spare_is_left():
    kv = space(10)
    assert not kv.reserve(owner(), 33, spare=(2,))
    assert kv.reserve(owner(), 32, spare=(2,))


def test_extending_over_several_groups_is_all_or_nothing():
    kv = space(10, 2, groups=(FULL, FULL))
    a = owner()
    assert kv.reserve(a, 4, spare=(0, 0))
    assert not kv.extend(a, 12)
    assert [len(table.ids) for table in a.tables] == [0, 0]
    assert kv.extend(a, 8)
    assert [len(table.ids) for table in a.tables] == [2, 2]


def test_a_window_gives_back_what_no_later_row_sees():
    kv = space(10, groups=(window(5),))
    a = owner()
    assert kv.reserve(a, 24, spare=(0,))
    assert kv.extend(a, 8)
    for computed, gone in ((8, 0), (9, 1), (12, 1), (13, 2)):
        kv.extend(a, computed)
        kv.trim(a, computed)
        table = a.tables[0]
        assert table.first == gone
        # Row ``computed`` sees the 5 positions that end with itself.
        assert gone * 4 <= computed - 5 + 1
        assert list(table.ids[:gone]) == [GONE] * gone
        kv.check([a])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("w", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_a_window_prompt_needs_no_more_than_is_promised(size, w, rows):
    """In the smallest pool that admits it a long prompt is computed to its end, whatever the alignment, while
    somebody else takes every block that is not promised."""
    length = 61
    for count in range(1, length + 1):
        kv = space(count, groups=(window(w),), size=size, max_slice=rows)
        a, thief = owner(), owner()
        if kv.reserve(a, length, spare=(0,)):
            break
    assert kv.pools[0].available == 0
    kv.reserve(thief, 0, spare=(0,))
    at = 0
    while at < length:
        at = min(at + rows, length)
        assert kv.extend(a, at)
        kv.trim(a, at)
        while kv.extend(thief, (len(thief.tables[0].ids) + 1) * size):
            pass
        kv.check([a, thief])


def test_the_window_bound_is_reached():
    """It is not looser than needed: some alignment holds that many blocks at once."""
    for size, w, rows in ((4, 6, 8), (3, 5, 2), (2, 1, 1), (4, 9, 1)):
        kv = space(60, groups=(window(w),), size=size, max_slice=rows)
        a = owner()
        kv.reserve(a, 100, spare=(0,))
        promised = kv.pools[0].promised
        most = 0
        for first in range(1, rows + 1):
            kv.release(a)
            kv.reserve(a, 100, spare=(0,))
            at = 0
            while at < 100:
                at = min(at + (first if at == 0 else rows), 100)
                kv.extend(a, at)
                most = max(most, a.tables[0].held)
                kv.trim(a, at)
        assert most <= promised <= most + (rows > 1)


def test_capacity_is_bounded_by_full_groups_and_windows_that_do_not_fit():
    assert space(10).capacity() == 40
    assert space(10, 8, groups=(FULL, FULL)).capacity() == 32
    assert space(10, 8, groups=(FULL, window(6))).capacity() == 40
    assert space(5, groups=(window(6),), max_slice=8).capacity() is None
    assert space(4, groups=(window(6),), max_slice=8).capacity() == 16


@pytest.mark.parametrize(
    ("groups", "counts", "text"),
    [
        ((FULL,), (1, 2), "1 KV groups but 2 block counts"),
        ((), (), "0 KV groups"),
        ((FULL,), (0,), "at least one block"),
        ((window(0),), (4,), "window of at least 1 token"),
    ],
)
def test_bad_spaces_are_named(groups, counts, text):
    with pytest.raises(ConfigError, match=text):
        space(*counts, groups=groups)
