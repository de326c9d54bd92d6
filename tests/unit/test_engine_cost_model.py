"""CostModel follows a machine it knows nothing of; StepBudget keeps steps within the target."""

from __future__ import annotations

import math
import random

import pytest

from spola.core.errors import ConfigError
from spola.core.runner import Capabilities
from spola.core.step import Slice, Step, pack_ids
from spola.engine.cost_model import CostModel, Prices, StepBudget, Work, work_of
from spola.engine.limits import Limits
from spola.engine.scheduler import Scheduler
from support.engine_rig import FULL, Rig, request, small_static

FIRST = Prices(fixed_s=0.01, row_s=0.003, head_s=0.001, pair_s=2e-6)
TRUE = Prices(fixed_s=0.004, row_s=0.0004, head_s=0.0005, pair_s=4e-6, more_s=0.0009)


def seconds(prices: Prices, work: Work) -> float:
    return prices.fixed_s + prices.row_s * work.rows + prices.head_s * work.heads + prices.pair_s * work.pairs


def some_work(rng: random.Random) -> Work:
    """Decodes of a few requests, and in half of the steps a chunk of a prompt."""
    work = Work()
    for _ in range(rng.randint(1, 8)):
        work.add(rng.randint(0, 2000), 1, 1)
    if rng.random() < 0.5:
        work.add(rng.randint(0, 2000), rng.randint(1, 256), 0)
    return work


def trained(true: Prices, first: Prices = FIRST, steps: int = 200, noise=lambda rng: 1.0) -> CostModel:
    model, rng = CostModel(first), random.Random(1)
    for _ in range(steps):
        work = some_work(rng)
        model.observe(work, seconds(true, work) * noise(rng))
    return model


def worst_error(model: CostModel, true: Prices) -> float:
    rng = random.Random(2)
    works = [some_work(rng) for _ in range(100)]
    return max(abs(model.seconds(w) / seconds(true, w) - 1) for w in works)


def test_work_counts_the_positions_that_rows_see() -> None:
    work = Work()
    work.add(10, 3, 1)  # rows at 10, 11, 12 see 11 + 12 + 13
    assert (work.rows, work.heads, work.pairs) == (3, 1, 36)
    step = Step(0, (Slice(1, 10, pack_ids([5, 6, 7]), (), 1), Slice(2, 0, pack_ids([1]), (), 1)))
    assert work_of(step) == Work(4, 2, 37)


def test_before_any_step_the_first_prices_hold() -> None:
    work = Work(rows=2, heads=1, pairs=100)
    assert CostModel(FIRST).seconds(work) == pytest.approx(0.01 + 0.006 + 0.001 + 2e-4)


@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e3])
def test_prices_are_learnt_whatever_the_machine(factor: float) -> None:
    true = Prices(*(v * factor for v in (TRUE.fixed_s, TRUE.row_s, TRUE.head_s, TRUE.pair_s, TRUE.more)))
    model = trained(true)
    assert worst_error(model, true) < 0.05
    chunk = Work()
    chunk.add(0, 200, 0)
    assert model.seconds(chunk) == pytest.approx(seconds(true, chunk), rel=0.2)


def test_stalls_do_not_mislead_it() -> None:
    model = trained(TRUE, noise=lambda rng: 50.0 if rng.random() < 0.04 else rng.uniform(0.95, 1.05))
    assert worst_error(model, TRUE) < 0.35


def test_a_machine_that_changes_is_followed() -> None:
    model, rng = trained(TRUE), random.Random(3)
    slower = Prices(TRUE.fixed_s * 3, TRUE.row_s * 3, TRUE.head_s * 3, TRUE.pair_s * 3, TRUE.more * 3)
    for _ in range(300):
        work = some_work(rng)
        model.observe(work, seconds(slower, work))
    assert worst_error(model, slower) < 0.1


def test_steps_of_one_kind_leave_the_proportions_of_the_first_prices() -> None:
    model = CostModel(FIRST)
    for _ in range(100):
        model.observe(Work(rows=1, heads=1, pairs=100), 0.1)
    assert model.seconds(Work(rows=1, heads=1, pairs=100)) == pytest.approx(0.1, rel=0.02)
    assert model.prices.row_s / FIRST.row_s == pytest.approx(model.prices.fixed_s / FIRST.fixed_s, rel=0.5)


def test_many_steps_of_one_size_do_not_make_the_others_forgotten() -> None:
    model = trained(TRUE)
    one = Work(rows=1, heads=1, pairs=500)
    for _ in range(3000):
        model.observe(one, seconds(TRUE, one))
    assert worst_error(model, TRUE) < 0.1


def test_a_step_that_is_the_slower_of_two_is_followed() -> None:
    """Reading the weights takes 5 ms and hides the arithmetic of the first rows: the shape of a roofline."""
    rng, model = random.Random(5), CostModel(FIRST)

    def roofline(work: Work) -> float:
        return 1e-4 + max(5e-3, 1.35e-3 * work.rows)

    for _ in range(400):
        work = some_work(rng)
        model.observe(work, roofline(work))
    for rows in (1, 4, 8, 16, 64, 256):
        work = Work(rows=rows, heads=min(rows, 8), pairs=rows * 500)
        assert model.seconds(work) == pytest.approx(roofline(work), rel=0.3)


def test_no_price_gets_negative_and_times_that_are_none_are_left_out() -> None:
    model, rng = CostModel(FIRST), random.Random(4)
    for elapsed in (0.0, -1.0, float("nan"), float("inf")):
        model.observe(Work(1, 1, 1), elapsed)
    assert model.steps == 0
    for _ in range(200):
        model.observe(some_work(rng), rng.uniform(1e-5, 1.0))
        prices = model.prices
        assert min(prices.fixed_s, prices.row_s, prices.head_s, prices.pair_s, prices.more) > 0


@pytest.mark.parametrize("start", [0, 500, 6000])
@pytest.mark.parametrize("target", [0.05, 0.1, 1.0])
def test_the_budget_is_as_large_as_the_target_allows(start: int, target: float) -> None:
    model = CostModel(TRUE)
    planned = Work(rows=2, heads=2, pairs=1000)
    budget = StepBudget(model, target)
    rows = budget.rows(planned, 0, start)

    def total(n: int) -> float:
        work = Work(planned.rows, planned.heads, planned.pairs)
        work.add(start, n, 0)
        return model.seconds(work)

    assert rows % 16 == 0
    assert 0.85 * target < budget.aim_s < target
    assert rows == 16 or total(rows) <= budget.aim_s
    assert total(rows + 16) > budget.aim_s


def planned_steps(budget: StepBudget, rng: random.Random, n: int, spread: float) -> list[float]:
    """Times of steps, of 4 decodes and a piece of a long prompt, on a machine with the prices TRUE."""
    times, truth = [], CostModel(TRUE)
    for i in range(n):
        start = 800 * i // n
        work = Work(rows=4, heads=4, pairs=1000)
        rows = budget.rows(work, 0, start)
        work.add(start, rows, 0)
        work.add(start + rows, budget.rows(work, rows, start + rows), 0)
        times.append(truth.seconds(work) * math.exp(rng.gauss(0.0, spread)))
        budget.observe(work, times[-1])
    return times


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.1])
def test_few_steps_exceed_the_target_however_much_the_times_of_steps_vary(spread: float) -> None:
    budget = StepBudget(CostModel(FIRST), 0.1)
    planned_steps(budget, random.Random(6), 100, spread)
    times = planned_steps(budget, random.Random(7), 400, spread)
    assert sum(t > 0.1 for t in times) <= 0.06 * len(times)
    assert 0.1 * math.exp(-2.6 * spread) - 0.005 < budget.aim_s <= 0.1  # and not by being far too careful


def test_a_stall_costs_little_of_the_budget() -> None:
    budget, rng = StepBudget(CostModel(FIRST), 0.1), random.Random(8)
    planned_steps(budget, rng, 200, 0.02)
    before, work = budget.aim_s, Work(rows=4, heads=4, pairs=1000)
    work.add(400, budget.rows(work, 0, 400), 0)
    budget.observe(work, 3.0)
    assert 0.85 * before < budget.aim_s < before
    budget.observe(work, float("nan"))
    planned_steps(budget, rng, 300, 0.02)
    assert budget.aim_s == pytest.approx(before, rel=0.02)


def test_sixteen_prompt_rows_are_always_allowed() -> None:
    budget = StepBudget(CostModel(TRUE), 0.001)
    slow = Work(rows=64, heads=64, pairs=100_000)
    assert budget.rows(slow, 0, 0) == 16
    assert budget.rows(slow, 10, 0) == 6
    assert budget.rows(slow, 16, 0) == 0


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan")])
def test_a_target_that_cannot_be_met_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="itl_target"):
        StepBudget(CostModel(TRUE), target)


def test_prices_that_are_none_are_refused() -> None:
    for bad in (Prices,):
        with pytest.raises(ConfigError, match="prices"):
            bad(0.0, 0.0, 0.0, 0.0)
        with pytest.raises(ConfigError, match="prices"):
            bad(-1.0, 1.0, 0.0, 0.0)


def rig(target: float, prices: Prices) -> Rig:
    made = Rig(rows=128, blocks=200, max_len=400)
    made.scheduler.budget = StepBudget(CostModel(prices), target)
    return made


def test_prompts_are_cut_only_while_somebody_waits_for_a_token() -> None:
    # One row costs 1 s of virtual time to the model; the target leaves room for less than 16 of them.
    made = rig(8.0, Prices(0.0, 1.0, 0.0, 0.0))
    made.scheduler.budget.observe = lambda work, elapsed: None  # these prices hold
    made.add(request(1, 100, 40))
    first = made.step()
    assert [s.n for s in first.slices] == [100]  # nobody decodes: all of it
    made.add(request(2, 60, 4))
    sizes = [[s.n for s in made.step().slices] for _ in range(4)]
    assert sizes == [[1, 16], [1, 16], [1, 16], [1, 12]]
    made.finish()


def test_two_prompts_share_the_budget_of_a_step() -> None:
    made = rig(33.0, Prices(0.0, 1.0, 0.0, 0.0))
    made.scheduler.budget.observe = lambda work, elapsed: None
    made.add(request(1, 4, 40))
    made.step()
    made.add(request(2, 20, 4), request(3, 90, 4))
    step = made.step()
    assert sum(s.n for s in step.slices) <= 33
    made.finish()


def test_the_scheduler_teaches_the_model() -> None:
    made = rig(0.01, FIRST)
    made.add(*(request(i, 30 + i, 20) for i in range(1, 6)))
    made.finish()
    model = made.scheduler.budget.model
    assert model.steps == len(made.steps)
    # The null backend's step is the slower of two; this one is bound by arithmetic.
    assert model.seconds(Work(rows=16, heads=5, pairs=400)) == pytest.approx(
        made.runner._cost.seconds(16, 0), rel=0.2
    )


def test_a_budget_that_holds_no_fixed_chunk_is_refused() -> None:
    caps: Capabilities = small_static(chunk=32)
    limits = Limits(max_step_tokens=64, max_seqs=4, max_model_len=100)
    with pytest.raises(ConfigError, match="chunk of 32"):
        Scheduler(limits, caps, (FULL,), (40,), budget=StepBudget(CostModel(TRUE), 0.1))
