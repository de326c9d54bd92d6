"""The check of a Step: every rule refuses a step that breaks it, and only it."""

import msgspec
import pytest

from spola.backends.shapes import StepError, check_step, is_decode, static
from spola.core.runner import Capabilities, RunnerConfig
from spola.core.step import Slice, Step, pack_ids
from support.engine_rig import FULL, window

CAPS = Capabilities(device="x", block_size=4)
CONFIG = RunnerConfig(
    kv_groups=(FULL, window(6)), kv_blocks=(9, 9), max_step_tokens=70, max_seqs=9, max_model_len=100
)


def piece(id=1, start=0, n=1, tables=((0,), (0,)), **fields):
    packed = tuple(pack_ids(table) for table in tables)
    return Slice(id, start, pack_ids(range(n)), packed, **({"n_head": 1} | fields))


def check(*slices, caps=CAPS, config=CONFIG, goals=None):
    check_step(Step(3, slices), caps, config, goals=goals)


GOOD = piece(2, 9, 3, ((1, 2, 3), (-1, 2, 3)))


def test_good_steps_pass():
    check(piece(), GOOD)
    check(piece(n=4, n_drafts=3, n_head=4), caps=msgspec.structs.replace(CAPS, speculation=True))


@pytest.mark.parametrize(
    ("slices", "text"),
    [
        ((piece(), piece()), "a request has two slices"),
        ((piece(n=0, n_head=0),), "request 1: a slice without rows"),
        ((piece(start=-1),), "rows -1 to 0 of 100"),
        ((piece(start=100, tables=(range(26), range(26))),), "rows 100 to 101 of 100"),
        ((piece(n_head=2),), "2 head rows of 1"),
        ((piece(n=2, n_drafts=2),), "2 drafts of 2 rows"),
        ((piece(n=2, n_drafts=1),), "without speculation"),
        ((piece(targets=pack_ids([1, 2])),), "2 score targets for 1 head rows"),
        ((piece(tables=((0,),)),), "1 block tables for 2 KV groups"),
        ((piece(n=5),), "KV group 0: 1 blocks for 5 positions"),
        ((piece(tables=((9,), (0,))),), "KV group 0: entry 0 is block 9, there are 9"),
        ((piece(tables=((-1,), (0,))),), "KV group 0: entry 0 is block -1"),
        ((piece(2, 8, 4, ((1, 2, 3), (-1, 2, 3))),), "KV group 1: entry 0 is block -1"),
        ((piece(n=5, tables=((1, 1), (1, 2))),), "a block is twice in the table"),
        ((piece(), piece(2)), "request 2, KV group 0: block 0 is written by request 1 too"),
        (
            (piece(1, 4, 1, ((0, 1), (0, 1))), piece(2, 4, 1, ((1, 2), (3, 2)))),
            "KV group 0: request 2 reads block 1, which request 1 writes",
        ),
        ([piece(i, tables=((i,), (i,))) for i in range(10)], "10 slices, at most 9"),
        ((piece(n=71, tables=(range(18),) * 2),), "71 rows, at most 70"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(slices, text):
    with pytest.raises(StepError, match=text):
        check(*slices)


def long(id, start, n, first=0):
    """A slice over its own blocks."""
    blocks = range(first, first + -(-(start + n) // 32))
    return piece(id, start, n, (blocks, blocks))


STATIC = static(Capabilities(device="x"), max_total_context=300)
WIDE = msgspec.structs.replace(
    CONFIG, kv_groups=(FULL, FULL), kv_blocks=(99, 99), max_step_tokens=640, max_seqs=20, max_model_len=400
)


@pytest.mark.parametrize(
    ("slices", "goals", "text"),
    [
        ((long(1, 0, 64), long(2, 5, 1, 9)), {1: 64, 2: 6}, "1 decode and 1 prefill slices in one step"),
        ((long(1, 0, 64), long(2, 0, 64, 9)), {1: 64, 2: 64}, "2 prefill slices, at most 1"),
        (tuple(long(i, 0, 1, i) for i in range(9)), {}, "9 decode slices, at most 8"),
        ((long(1, 32, 64),), {1: 96}, "starts at 32, no multiple of 64"),
        ((long(1, 0, 65),), {1: 65}, "65 rows, chunks have 64"),
        ((long(1, 64, 10),), {1: 80}, "10 rows in the middle of a prompt"),
        ((long(1, 256, 64),), {1: 320}, "320 positions of context, at most 300"),
    ],
)
def test_static_shapes_refuse_any_other(slices, goals, text):
    with pytest.raises(StepError, match=text):
        check(*slices, caps=STATIC, config=WIDE, goals=goals)
    loose = Capabilities(device="x")
    check(*slices, caps=loose, config=WIDE, goals=goals)


def test_static_shapes_take_theirs():
    check(long(1, 64, 64), caps=STATIC, config=WIDE, goals={1: 200})
    check(long(1, 64, 10), caps=STATIC, config=WIDE, goals={1: 74})
    check(long(1, 64, 1), caps=STATIC, config=WIDE, goals={1: 65})
    check(*(long(i, 0, 1, i) for i in range(8)), caps=STATIC, config=WIDE)
    assert STATIC.static_shapes


def test_a_decode_is_one_row_beside_its_drafts():
    assert is_decode(piece())
    assert is_decode(piece(n=3, n_drafts=2))
    assert not is_decode(piece(n=3, n_drafts=1))
