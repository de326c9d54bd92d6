"""Rope frequencies: by wavelength and by definition, written a second time."""

from __future__ import annotations

import math

import pytest

from spola.core.errors import ModelError
from spola.spec.decoder import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from spola.spec.rope import inverse_frequencies

DIM, BASE = 64, 500000.0
PLAIN = [1 / BASE ** (2 * i / DIM) for i in range(DIM // 2)]


def of(scaling: RopeScaling, length: int = 4096) -> tuple[list[float], float]:
    return inverse_frequencies(Rope(DIM, BASE, "half", scaling), length)


def test_plain_and_linear() -> None:
    assert of(NoScaling()) == (pytest.approx(PLAIN, rel=1e-14), 1.0)
    assert of(LinearScaling(4.0)) == (pytest.approx([f / 4 for f in PLAIN], rel=1e-14), 1.0)


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    """The numbers of Llama 3.1: factor 8 over 8192, waves under 2048 kept, above 8192 divided."""
    got, attention = of(Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert attention == 1.0
    kinds = set()
    for f, plain in zip(got, PLAIN, strict=True):
        wavelength = 2 * math.pi / plain
        if wavelength < 2048:
            kinds.add("kept")
            assert f == pytest.approx(plain, rel=1e-14)
        elif wavelength > 8192:
            kinds.add("stretched")
            assert f == pytest.approx(plain / 8, rel=1e-14)
        else:
            kinds.add("between")
            smooth = (8192 / wavelength - 1) / 3
            assert f == pytest.approx((1 - smooth) * plain / 8 + smooth * plain, rel=1e-12)
    assert kinds == {"kept", "stretched", "between"}


def test_yarn_interpolates_by_the_number_of_turns() -> None:
    scaling = YarnScaling(16.0, 4096)
    got, attention = of(scaling)
    assert attention == pytest.approx(0.1 * math.log(16) + 1)
    # The dimension at which a wave makes n turns within the original context, in closed form.
    low, high = (DIM * math.log(4096 / (n * 2 * math.pi)) / (2 * math.log(BASE)) for n in (32, 1))
    low, high = math.floor(low), math.ceil(high)
    for i, (f, plain) in enumerate(zip(got, PLAIN, strict=True)):
        stretched = min(max((i - low) / (high - low), 0), 1)
        assert f == pytest.approx(plain * (1 - stretched) + plain / 16 * stretched, rel=1e-12)
    assert got[0] == pytest.approx(PLAIN[0], rel=1e-14)
    assert got[-1] == pytest.approx(PLAIN[-1] / 16)


def test_yarn_without_extrapolation_is_linear() -> None:
    got, attention = of(YarnScaling(16.0, 4096, extrapolation=0.0, attention_factor=1.25))
    assert got == pytest.approx([f / 16 for f in PLAIN], rel=1e-14)
    assert attention == 1.25
    assert of(YarnScaling(1.0, 4096)) == (pytest.approx(PLAIN, rel=1e-14), 1.0)


def test_longrope_chooses_by_the_length_served() -> None:
    short, long = tuple(1.0 + i for i in range(32)), tuple(2.0 + i for i in range(32))
    scaling = LongRopeScaling(short, long, 4096)
    got, attention = of(scaling, 4096)
    assert (got, attention) == (pytest.approx([f / d for f, d in zip(PLAIN, short, strict=True)]), 1.0)
    got, attention = of(scaling, 131072)
    assert got == pytest.approx([f / d for f, d in zip(PLAIN, long, strict=True)])
    assert attention == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    assert of(LongRopeScaling(short, long, 4096, 1.5), 131072)[1] == 1.5
    with pytest.raises(ModelError, match="3 factors, but the rope 32 frequencies"):
        of(LongRopeScaling(short, (1.0,) * 3, 4096), 131072)
