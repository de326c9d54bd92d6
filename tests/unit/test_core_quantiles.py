"""Percentiles are NumPy's, without NumPy."""

import numpy as np
import pytest

from spola.core.quantiles import Window, describe, percentile


@pytest.mark.parametrize("n", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("q", [0, 1, 50, 90, 95, 99, 99.9, 100])
def test_the_rule_is_numpys_linear(n: int, q: float) -> None:
    values = np.sort(np.random.default_rng(n).lognormal(size=n))
    assert percentile(values.tolist(), q) == np.percentile(values, q, method="linear")


def test_no_values_and_no_percentiles_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="0 to 100"):
        percentile([1.0], 101)


def test_describe() -> None:
    assert describe([]) == {"mean": None, "p50": None, "p95": None, "p99": None, "max": None}
    assert describe([3.0, 1.0, 2.0]) == {"mean": 2.0, "p50": 2.0, "p95": 2.9, "p99": 2.98, "max": 3.0}


def test_a_window_keeps_the_last_values_and_counts_all() -> None:
    window = Window(3)
    for value in range(10):
        window.add(value)
    assert (window.count, window.total) == (10, 45)
    assert window.describe()["p50"] == 8
    assert window.describe()["max"] == 9
    with pytest.raises(ValueError, match="at least one"):
        Window(0)
