"""The null backend sees what is wrong with a step or with the cache, and is the same everywhere."""

from types import SimpleNamespace

import pytest

from spola.backends.null import Cost, NullRunner
from spola.backends.registry import backend
from spola.backends.shapes import StepError
from spola.core.runner import Runner, RunnerConfig
from spola.core.step import BlockCopy, RequestState, Slice, Step, pack_ids
from support.engine_rig import FULL, VOCAB, Rig, params, request, window

IDS = (5, 6, 7, 8, 9, 10)


def runner(groups=(FULL,), **fields):
    made = NullRunner(block_size=4, **fields)
    config = RunnerConfig(
        kv_groups=groups,
        kv_blocks=(8,) * len(groups),
        max_step_tokens=16,
        max_seqs=2,
        max_model_len=64,
    )
    made.load(SimpleNamespace(vocab=VOCAB), (), config)
    return made


def state(id=1, ids=IDS, **fields):
    return RequestState(id, 0, fields.pop("seed", 0), pack_ids(ids), len(ids), params(**fields))


def piece(id=1, start=0, ids=IDS, table=(0, 1), n_head=1, groups=1):
    return Slice(id, start, pack_ids(ids), (pack_ids(table),) * groups, n_head)


def test_it_is_a_runner_found_by_name():
    assert backend("null") is NullRunner
    assert isinstance(NullRunner(), Runner)


def test_a_prompt_in_pieces_gives_the_token_of_the_whole():
    whole = runner().execute(Step(0, (piece(),), (state(),)))
    parts = runner()
    parts.execute(Step(0, (piece(ids=IDS[:3], table=(3,), n_head=0),), (state(),)))
    last = parts.execute(Step(1, (piece(start=3, ids=IDS[3:], table=(3, 0)),)))
    assert last.slices == whole.slices
    (token,) = whole.slices[0].ids
    assert 0 <= token < VOCAB


def test_seed_and_choice_count_unless_greedy():
    def first(seed, temperature):
        step = Step(0, (piece(),), (state(seed=seed, temperature=temperature),))
        return runner().execute(step).slices[0].ids

    assert len({first(seed, 1.0) for seed in range(20)}) > 5
    assert len({first(seed, 0.0) for seed in range(20)}) == 1


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step(1, (piece(2),)), "request 2 was never new"),
        (Step(1, (piece(),), (state(),)), "request 1 is new but known"),
        (Step(1, (piece(start=3, ids=(1, 9, 10)),)), "the ids are not those from 3"),
        (Step(1, (piece(start=3, ids=IDS[3:5]),)), "1 rows to sample at 5"),
        (Step(1, (piece(start=3, ids=IDS[3:], n_head=0),)), "0 rows to sample at 6"),
        (Step(1, (), (state(2), state(3))), "3 live requests, at most 2"),
        (
            Step(1, (piece(start=3, ids=IDS[3:], table=(2, 1)),)),
            "KV group 0: position 0 .block 2. was never written",
        ),
        (
            Step(
                1,
                (piece(2, 3, ids=IDS[3:], table=(0, 4)),),
                (state(2, (1, *IDS[1:])),),
            ),
            "position 0 .block 0. holds another text",
        ),
    ],
)
def test_a_wrong_step_is_seen(step, text):
    made = runner()
    made.execute(Step(0, (piece(ids=IDS[:3], table=(0,), n_head=0),), (state(),)))
    with pytest.raises(StepError, match=text):
        made.execute(step)


def test_a_block_reused_too_early_is_seen():
    made = runner()
    made.execute(Step(0, (piece(),), (state(),)))
    made.execute(Step(1, (piece(2, ids=(1, 2, 3), table=(0,)),), (state(2, (1, 2, 3)),)))
    token = made.execute(Step(0, (piece(),), (state(),), gone=(1,))).slices[0].ids
    made.execute(Step(1, (piece(2, ids=(1, 2, 3), table=(1,)),), (state(2, (1, 2, 3)),), gone=(2,)))
    with pytest.raises(StepError, match=r"position 4 \(block 1\) holds another text"):
        made.execute(Step(2, (piece(1, 6, token, (0, 1)),)))


def test_a_window_needs_only_what_its_rows_see():
    groups = (FULL, window(3))
    for dead, text in ((1, None), (2, "entry 1 is block -1")):
        made = runner(groups)
        ids = tuple(range(9))
        first = Slice(1, 0, pack_ids(ids), (pack_ids((0, 1, 2)), pack_ids((0, 1, 2))), 1)
        (token,) = made.execute(Step(0, (first,), (state(1, ids),))).slices[0].ids
        tables = (pack_ids((0, 1, 2)), pack_ids([-1] * dead + [0, 1, 2][dead:]))
        step = Step(1, (Slice(1, 9, pack_ids((token,)), tables, 1),))
        if text is None:
            made.execute(step)
        else:
            with pytest.raises(StepError, match=text):
                made.execute(step)


def test_copies_read_before_any_write():
    made = runner()
    (token,) = made.execute(Step(0, (piece(),), (state(),))).slices[0].ids
    swap = (BlockCopy(0, 0, 1), BlockCopy(0, 1, 0))
    made.execute(Step(1, (piece(start=6, ids=(token,), table=(1, 0)),), copies=swap))


def test_zeroed_blocks_are_unwritten():
    made = runner()
    (token,) = made.execute(Step(0, (piece(),), (state(),))).slices[0].ids
    with pytest.raises(StepError, match=r"position 0 \(block 0\) was never written"):
        made.execute(Step(1, (piece(start=6, ids=(token,)),), zero=((0, 0),)))


def test_ids_that_are_gone_may_be_gone_again():
    made = runner()
    made.execute(Step(0, (piece(),), (state(),), gone=(7, 8)))
    assert made.held == {1}
    made.execute(Step(1, (), gone=(1,)))
    assert made.held == set()


def test_virtual_time_is_the_slower_of_memory_and_arithmetic():
    cost = Cost(weight_bytes=100, flops_per_token=10, bytes_per_s=50, flops_per_s=20, fixed_s=1)
    assert cost.seconds(1, 0) == 3.0
    assert cost.seconds(1, 100) == 5.0
    assert cost.seconds(10, 100) == 6.0
    made = runner(cost=cost)
    assert made.execute(Step(0, (piece(),), (state(),))).elapsed_s == 1 + (100 + 6 * 16 * 1) / 50


def test_without_checks_the_tokens_are_the_same():
    outs = []
    for strict in (True, False):
        rig = Rig(blocks=12, runner=NullRunner(block_size=4, strict=strict))
        rig.add(*(request(i, 5 + i, 9, seed=i) for i in range(5)))
        outs.append({id: r.ids for id, r in rig.finish().items()})
    assert outs[0] == outs[1]


def test_life_cycle():
    made = runner()
    with pytest.raises(RuntimeError, match="loaded once"):
        made.load(SimpleNamespace(vocab=2), (), made._config)
    assert made.memory() == {"weights": 0, "kv": 8 * 4 * 8, "workspace": 0}
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="before load or after close"):
        made.execute(Step(0, ()))


def test_static_shapes_give_the_tokens_of_dynamic_ones():
    """Chunks of 64 and buckets of 8 over the usual blocks of 32, with preemptions."""
    lengths = (1, 63, 64, 65, 128, 130, 7, 191, 64, 2, 100, 5)
    outs = []
    for made in (NullRunner(static=True), NullRunner()):
        rig = Rig(blocks=24, runner=made, rows=80, seqs=16, max_len=260)
        rig.add(*(request(i, n, 60, seed=i, ignore_eos=True) for i, n in enumerate(lengths)))
        results = rig.finish()
        assert {r.reason for r in results.values()} == {"length"}
        outs.append({id: r.ids for id, r in results.items()})
        assert rig.scheduler.stats.preemptions > 0
        mixed = [step for step in rig.steps if len({s.n == 1 for s in step.slices}) == 2]
        assert bool(mixed) == made.capabilities.mixed_batch
    assert outs[0] == outs[1]
