"""A draft model beside the engine, on the null backend: its fake cache notices K and V that are not there."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from spola.backends.null import NullRunner
from spola.core.runner import Capabilities, KvGroup, RunnerConfig
from spola.engine.drafter import Drafter
from spola.engine.kv import KvSpace
from spola.engine.speculate import Speculator, best_lengths
from support.engine_rig import FULL, VOCAB, Rig, expected, next_token, request, window


def half_right(state, ids) -> int:
    token = next_token(state, ids)
    return token if len(ids) % 3 else (token + 1) % VOCAB


def attach(
    rig: Rig,
    *,
    script=next_token,
    blocks: int = 64,
    groups: tuple[KvGroup, ...] = (FULL,),
    rows: int = 32,
    seqs: int = 8,
    max_len: int = 200,
    most: int = 5,
    **more,
) -> Drafter:
    caps = Capabilities(device="null", block_size=4, speculation=True)
    runner = NullRunner(capabilities=caps, script=script)
    counts = (blocks,) * len(groups)
    runner.load(
        SimpleNamespace(vocab=VOCAB, hidden=6),
        (),
        RunnerConfig(
            kv_groups=groups, kv_blocks=counts, max_step_tokens=rows, max_seqs=seqs, max_model_len=max_len
        ),
    )
    kv = KvSpace(groups, counts, block_size=4, max_slice=rows)
    drafter = Drafter(
        runner, kv, lambda n: 1.0, ratio=0.1, max_rows=rows, max_len=max_len, identity={}, **more
    )
    rig.scheduler.speculator = Speculator(drafter, lambda n: 1.0, most=most, draft_cost=lambda n: 0.01)
    rig.engine.drafter = drafter
    return drafter


def checked(drafter: Drafter) -> None:
    drafter.kv.check(list(drafter._shadows.values()))


def test_a_model_that_knows_the_answer_is_always_right() -> None:
    rig = Rig()
    drafter = attach(rig)
    rig.add(request(1, 9, 30))
    assert rig.finish()[1].ids == expected(request(1, 9, 30), list(request(1, 9).known), 200).ids
    stats = rig.scheduler.stats
    assert stats.accepted_tokens == stats.draft_tokens == 24
    assert len(rig.steps) == 1 + 5
    assert drafter.failure is None
    assert all(pool.used == 0 for pool in drafter.kv.pools)
    summary = rig.results[1].finals[0].summary
    assert (summary.n_drafted, summary.n_accepted) == (24, 24)


@pytest.mark.parametrize("groups", [(FULL,), (FULL, window(9)), (window(5),)])
def test_random_mixes_read_only_what_was_computed_and_change_nothing(groups) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        rig = Rig(blocks=40, rows=24, seqs=5, chunk=draw.choice((None, 7)))
        drafter = attach(rig, script=half_right, blocks=draw.choice((14, 40)), groups=groups, rows=24, seqs=5)
        shared = [draw.randrange(VOCAB) for _ in range(21)]
        asked = []
        for id in range(14):
            prompt = shared[: draw.randrange(22)] + [
                draw.randrange(VOCAB) for _ in range(draw.randrange(1, 40))
            ]
            asked.append((id, prompt, draw.randrange(1, 40)))
        aborted = {draw.randrange(14) for _ in range(3)}
        waiting = list(asked)
        steps = 0
        while waiting or rig.engine.has_work:
            if waiting and draw.random() < 0.4:
                id, prompt, most = waiting.pop()
                rig.add(request(id, prompt, most, temperature=draw.choice((0.0, 1.0)), seed=id))
            for id in aborted:
                if draw.random() < 0.02:
                    rig.engine.abort(id)
            rig.step()
            checked(drafter)
            steps += 1
            assert steps < 3000
        assert drafter.failure is None
        for id, prompt, most in asked:
            want = expected(request(id, prompt, most, seed=id), prompt, 200)
            got = rig.results[id]
            assert got.ids == want.ids[: len(got.ids)]
            assert got.reason == "abort" or got.ids == want.ids
        stats = rig.scheduler.stats
        assert 0 < stats.accepted_tokens < stats.draft_tokens
        assert all(pool.used == 0 for pool in drafter.kv.pools)
        rig.step()


def test_the_shared_beginning_of_prompts_is_drafted_from_the_cache() -> None:
    rig = Rig(blocks=200, rows=64)
    drafter = attach(rig, blocks=200, rows=64)
    prompt = [(3 * i + 1) % VOCAB for i in range(60)]
    rig.add(request(1, prompt, 12))
    rig.finish()
    rows = drafter.runner._held  # nothing is held of a request that has ended once the next step has run
    rig.add(request(2, [*prompt, 5, 6, 7], 12))
    seen = []
    run = drafter.runner.execute
    drafter.runner.execute = lambda step: seen.append(step.n_rows) or run(step)
    rig.finish()
    assert sum(seen) < 30
    assert set(rows) <= {2}


def test_long_prompts_catch_up_while_others_go_on() -> None:
    rig = Rig(blocks=200, rows=64, seqs=4)
    drafter = attach(rig, blocks=200, rows=64, seqs=4)
    drafter.cost = lambda n: n / 16  # a step of the served model is as long as 16 rows here
    drafter.cost.add = lambda rows, seconds: None
    rig.add(request(1, 5, 60), request(2, 150, 40))
    most = []
    run = drafter.runner.execute
    drafter.runner.execute = lambda step: most.append(step.n_rows) or run(step)
    results = rig.finish()
    assert {id: r.ids for id, r in results.items()} == {
        id: expected(request(id, n, 60), list(request(id, n).known), 200).ids[:count]
        for id, n, count in ((1, 5, 60), (2, 150, 40))
    }
    assert max(most) <= 16 + 4
    assert results[2].finals[0].summary.n_accepted > 10


def test_positions_beyond_the_draft_model_get_no_drafts() -> None:
    rig = Rig()
    drafter = attach(rig, max_len=20)
    rig.add(request(1, 9, 40))
    assert rig.finish()[1].ids == expected(request(1, 9, 40), list(request(1, 9).known), 200).ids
    assert drafter.failure is None
    assert 5 < rig.scheduler.stats.draft_tokens < 20


def test_a_draft_model_that_fails_ends_drafting_and_nothing_else() -> None:
    rig = Rig()
    drafter = attach(rig)
    rig.add(request(1, 9, 30), request(2, 4, 30))
    for _ in range(3):
        rig.step()

    def broken(step):
        raise ValueError("no more")

    drafter.runner.execute = broken
    results = rig.finish()
    assert "no more" in drafter.failure
    assert {r.reason for r in results.values()} == {"length"}
    assert all(pool.used == 0 for pool in drafter.kv.pools)


def test_lengths_are_those_with_most_tokens_per_second() -> None:
    def rate(lengths, alphas, cost, draft_cost, rows):
        tokens = sum(sum(a**i for i in range(n + 1)) for a, n in zip(alphas, lengths, strict=True))
        depths = [sum(n >= d for n in lengths) for d in range(1, max(lengths, default=0) + 1)]
        return tokens / (cost(rows + sum(lengths)) + sum(draft_cost(n) for n in depths))

    draw = random.Random(3)
    for _ in range(40):
        alphas = [draw.uniform(0.1, 0.95) for _ in range(2)]
        row, draft = draw.choice((0.01, 0.2)), draw.choice((0.05, 0.4))
        cost, draft_cost = (lambda n, r=row: 1 + r * n), (lambda n, d=draft: d * (1 + 0.1 * n))
        found = best_lengths(alphas, [4, 4], cost, draft_cost, rows=2, room=99)
        every = [[i, j] for i in range(5) for j in range(5)]
        best = max(rate(n, alphas, cost, draft_cost, 2) for n in every)
        assert rate(found, alphas, cost, draft_cost, 2) >= 0.99 * best
    assert best_lengths([0.9], [4], lambda n: n, lambda n: n, rows=1, room=99) == [0]
    assert sum(best_lengths([0.9, 0.9], [4, 4], lambda n: 1.0, lambda n: 0.01, rows=2, room=3)) == 3
