"""Rates of kernels stand beside the ceiling of their own instructions and the memory's reads."""

from __future__ import annotations

import pytest

from spola.bench.kernels import bench_kernels
from spola.core.errors import ConfigError
from spola.runtime.limits import MachineLimits

_native = pytest.importorskip("spola._native")

LIMITS = MachineLimits("any", 1e10, {"f32": 1e9, "a8": 2e9, "a16": 3e9})
BOUNDS = {"Q4_0": "a8", "Q8_0": "a16", "F16": "f32"}


def test_a_row_per_type_shape_and_number_of_rows() -> None:
    table = bench_kernels(LIMITS, BOUNDS, shapes=((32, 256), (16, 512)), rows=(1, 5))
    assert [(row["type"], row["rows"], row["m"]) for row in table[:4]] == [
        ("Q4_0", 32, 1),
        ("Q4_0", 32, 5),
        ("Q4_0", 16, 1),
        ("Q4_0", 16, 5),
    ]
    assert len(table) == 12
    for row in table:
        assert row["format"] == BOUNDS[row["type"]]
        assert row["of_peak"] == pytest.approx(row["gmac_s"] * 1e9 / LIMITS.peak[row["format"]])
        assert row["of_ceiling"] == pytest.approx(row["gmac_s"] / row["ceiling_gmac_s"])
        assert row["of_read"] == pytest.approx(row["gb_s"] * 1e9 / LIMITS.read)
    for name in BOUNDS:  # one ceiling for all rows of a type
        assert len({row["ceiling_gmac_s"] for row in table if row["type"] == name}) == 1


def test_another_instruction_set_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOLA_ISA", "scalar")
    asked: list[str] = []
    for name in ("measure_mix", "measure_linear"):
        real = getattr(_native, name)
        monkeypatch.setattr(
            _native, name, lambda isa, *rest, real=real: asked.append(isa) or real(isa, *rest)
        )
    bench_kernels(LIMITS, ("F16",), shapes=((16, 32),), rows=(1,))
    assert set(asked) == {"scalar"}


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="Q4_K, 32 x 100, 1 rows"):
        bench_kernels(LIMITS, ("Q4_K",), shapes=((32, 100),), rows=(1,))
    with pytest.raises(ValueError, match="the type is not known"):
        _native.measure_mix("scalar", 9999, False, 1)
