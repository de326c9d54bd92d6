"""The first prices of a model, and the budget that a service gets from its options."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from spola.core.errors import ConfigError
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.prices import BYTES_PER_S, first_prices
from spola.spec.cost import matmul_parameters
from support.service import tiny_file


def test_the_first_prices_are_the_models_arithmetic(tmp_path: Path) -> None:
    spec = load_engine(str(tiny_file(tmp_path)), Options(backend="null")).spec
    sizes = {"packed_bytes": 10**6, "kv_bytes_per_token": 256}
    prices = first_prices(spec, **sizes, threads=2, bytes_per_s=1e9, ops_per_s=1e9)
    assert prices.fixed_s == pytest.approx(1e-3)
    assert prices.row_s == pytest.approx(2 * matmul_parameters(spec) / 2e9)
    assert prices.head_s == pytest.approx(2 * 64 * 288 / 2e9)
    # 2 layers of 4 heads with 16 + 16 numbers per position, 2 operations each
    assert prices.pair_s == pytest.approx(max(256 / 1e9, 2 * 2 * 4 * 32 / 2e10))
    unknown = first_prices(spec, **sizes, threads=1)
    assert unknown.fixed_s == pytest.approx(1e6 / BYTES_PER_S)


def test_a_budget_is_made_only_when_asked_for(tmp_path: Path) -> None:
    path = str(tiny_file(tmp_path))
    assert load_engine(path, Options(backend="null")).engine.scheduler.budget is None
    loaded = load_engine(path, Options(backend="null", itl_target_s=0.05))
    assert loaded.engine.scheduler.budget.itl_target_s == 0.05
    assert loaded.config.itl_target_s == 0.05


@pytest.mark.parametrize("target", [0.0, -0.1, math.nan, math.inf])
def test_a_target_that_is_none_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="itl_target"):
        Options(itl_target_s=target)
