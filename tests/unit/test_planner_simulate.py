"""The simulator: hand-made costs give the times one can work out, and queues grow when they must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from spola.core.errors import ConfigError
from spola.core.step import Step
from spola.planner.simulate import Settings, simulate
from spola.spec.kv import kv_groups
from spola.workload import Item, Mix, mix
from support.tiny import TinyModel


@dataclass
class Fixed:
    """A speed: 10 ms for a step, and 1 ms more for each row of a prompt."""

    spec: Any
    dtypes: Any
    threads: int = 1
    steps: int = 0

    class limits:
        read = 1e10

    def step(self, step: Step) -> float:
        self.steps += 1
        return 0.01 + 0.001 * sum(piece.n for piece in step.slices if piece.n > 1)


def run(items: list[Item], seqs: int = 4, **load: Any) -> dict[str, Any]:
    model = TinyModel()
    speed: Any = Fixed(model.spec, {info.name: "F32" for info in model.infos})
    settings = Settings(kv_blocks=(64,), max_seqs=seqs, max_model_len=512, itl_target_s=None)
    load = {"server_s": 0.0} | load
    return simulate(speed, kv_groups(model.spec), settings, Mix(tuple(items), "test"), **load)


def test_the_way_of_a_token_lengthens_its_step() -> None:
    result = run([Item(20, 5), Item(1, 5)], concurrency=2, token_s=0.003)
    assert result["ttft_ms"]["p50"] == pytest.approx(10 + 20 + 2 * 3)
    assert result["tpot_ms"]["p50"] == pytest.approx(10 + 2 * 3)
    assert result["ttft_ms"]["p50"] == run([Item(20, 5), Item(1, 5)], concurrency=2)["ttft_ms"]["p50"] + 6


def test_one_request_takes_what_its_steps_take() -> None:
    result = run([Item(20, 5)], concurrency=1)
    assert result["ttft_ms"]["p50"] == pytest.approx(10 + 20)
    assert result["tpot_ms"]["p50"] == pytest.approx(10)
    assert result["latency_ms"]["p50"] == pytest.approx(30 + 4 * 10)
    assert result["duration_s"] == pytest.approx(0.07)
    assert result["output_tok_s"] == pytest.approx(5 / 0.07)
    assert result["itl_ms"]["max"] == pytest.approx(10)


def test_what_a_request_waits_outside_of_the_engine_counts() -> None:
    result = run([Item(20, 5)], concurrency=1, server_s=0.25)
    assert result["ttft_ms"]["p50"] == pytest.approx(30 + 250)
    assert result["tpot_ms"]["p50"] == pytest.approx(10)


def test_clients_of_a_closed_loop_follow_each_other() -> None:
    result = run([Item(20, 5)] * 3, concurrency=1)
    assert result["duration_s"] == pytest.approx(3 * 0.07)
    assert result["latency_ms"]["max"] == pytest.approx(70)
    assert result["mean_concurrency"] == pytest.approx(1)
    # Four at once share their steps.
    assert run([Item(20, 5)] * 4, concurrency=4)["duration_s"] < 3 * 0.07


def test_an_open_loop_waits_for_arrivals_and_queues_when_it_is_too_much() -> None:
    items = list(mix("random", 40, prompt=20, output=5).items)
    idle = run(items, rate=1.0)
    assert idle["duration_s"] > 38
    assert idle["busy"] < 0.1
    assert idle["ttft_ms"]["p50"] == pytest.approx(30)
    full = run(items, seqs=1, rate=50.0)
    assert full["ttft_ms"]["max"] > 20 * 70
    assert full["busy"] == pytest.approx(1, abs=0.02)
    assert full["mean_concurrency"] > 5


def test_a_shared_prefix_is_computed_once() -> None:
    items = [Item(100, 2, shared=96, group=0)] * 5
    result = run(items, concurrency=1)
    assert result["cached_tokens"] == 4 * 96


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ConfigError, match="600"):
        run([Item(600, 5)], concurrency=1)
