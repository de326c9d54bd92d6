"""Block pools: counts, order of reuse, and that a fault in them is seen."""

import random

import pytest

from spola.engine.pool import BlockPool


def test_blocks_are_taken_least_recently_used_first():
    pool = BlockPool(4)
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(IndexError, match="no free block"):
        pool.take()
    for block in (2, 0, 3):
        pool.label(block, b"h")
        pool.drop(block)
    pool.drop(1)  # no hash: nothing to keep, reused first
    assert pool.free_blocks() == [1, 2, 0, 3]
    pool.check()


def test_a_shared_block_is_freed_by_its_last_owner():
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    pool.drop(block)
    assert pool.used == 1
    pool.drop(block)
    assert pool.used == 0
    with pytest.raises(ValueError, match="block 0 is free already"):
        pool.drop(block)


def test_a_free_block_keeps_its_hash_until_it_is_reused():
    pool = BlockPool(2)
    block = pool.take()
    pool.label(block, b"h")
    pool.drop(block)
    pool.share(block)
    assert (pool.hashes[block], pool.refs[block], pool.free) == (b"h", 1, 1)
    pool.drop(block)
    assert [pool.take(), pool.take()] == [1, 0]
    assert pool.hashes[0] is None


def test_random_use_keeps_every_invariant():
    draw = random.Random(7)
    pool = BlockPool(9)
    owned: list[int] = []
    for _ in range(3000):
        match draw.randrange(4):
            case 0 if pool.free:
                owned.append(pool.take())
                pool.hashes[owned[-1]] = draw.choice((None, b"h"))
            case 1 if owned:
                owned.append(draw.choice(owned))
                pool.share(owned[-1])
            case 2 | 3 if owned:
                pool.drop(owned.pop(draw.randrange(len(owned))))
        pool.check()
        assert sorted(owned) == sorted(b for b, refs in enumerate(pool.refs) for _ in range(refs))


def test_check_sees_faults():
    for harm in (
        lambda p: p.refs.__setitem__(3, 1),
        lambda p: setattr(p, "free", 5),
        lambda p: setattr(p, "promised", 5),
        lambda p: p._next.__setitem__(2, 1),
        lambda p: p._prev.__setitem__(2, 3),
    ):
        pool = BlockPool(5)
        pool.take()
        pool.check()
        harm(pool)
        with pytest.raises(AssertionError):
            pool.check()


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
