"""Whatever bytes the GGUF reader gets, it reads them soundly or refuses them with a ModelError."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gguf_mutate import EDGES, mutate, read_hostile, rewrite, seeds

SEEDS = seeds()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "model.gguf"
    path.touch()
    return path


@pytest.mark.parametrize("index", range(len(SEEDS)))
def test_the_seeds_are_valid(path: Path, index: int) -> None:
    rewrite(path, SEEDS[index])
    assert read_hostile(path) is None


@settings(max_examples=200, deadline=None)
@given(
    which=st.integers(0, len(SEEDS) - 1),
    at=st.integers(0, 800),
    width=st.sampled_from([1, 2, 4, 8]),
    value=st.sampled_from(EDGES) | st.integers(0, 2**64 - 1),
)
def test_any_number_anywhere(path: Path, which: int, at: int, width: int, value: int) -> None:
    data = bytearray(SEEDS[which])
    at %= len(data)
    data[at : at + width] = value.to_bytes(8, "little")[:width][: len(data) - at]
    rewrite(path, data)
    read_hostile(path)


@settings(max_examples=100, deadline=None)
@given(tail=st.binary(max_size=200), n_tensors=st.integers(0, 3), n_pairs=st.integers(0, 3))
def test_any_bytes_after_the_counts(path: Path, tail: bytes, n_tensors: int, n_pairs: int) -> None:
    head = b"GGUF\3\0\0\0" + n_tensors.to_bytes(8, "little") + n_pairs.to_bytes(8, "little")
    rewrite(path, head + tail)
    read_hostile(path)


def test_mutated_files_are_sound_or_refused(path: Path) -> None:
    rng = random.Random(20)
    refused = 0
    for round_number in range(2000):
        rewrite(path, mutate(SEEDS[round_number % len(SEEDS)], rng))
        refused += read_hostile(path) is not None
    # Both outcomes must be common, or the mutations test nothing.
    assert 400 < refused < 1900
