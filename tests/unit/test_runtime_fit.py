"""What fits, with its numbers; sizes and options as people write them."""

from __future__ import annotations

import dataclasses

import pytest

from spola.core.errors import CapacityError, ConfigError
from spola.core.runner import KvGroup
from spola.runtime.config import Options, parse_bytes, parse_kv_dtype
from spola.runtime.fit import KV_SHARE, LONGEST, USABLE, WORKSPACE, fit
from spola.runtime.machine import Machine, probe

GROUP = KvGroup(layers=(0, 1), heads=2, k_dim=64, v_dim=64)
BLOCK = GROUP.bytes_per_block
MB = 1 << 20


def machine(memory: int, available: int | None = None) -> Machine:
    return dataclasses.replace(
        probe(), memory_limit=memory, memory_available=available or memory, memory_limit_reason="a test"
    )


def test_everything_fits_and_no_more_is_taken_than_requests_can_use() -> None:
    found = fit([GROUP], weights=MB, trained=1000, machine=machine(4096 * MB), max_seqs=3)
    assert found.max_model_len == 1000
    assert found.blocks == (3 * 32,)
    assert found.kv_bytes == 96 * BLOCK
    assert found.reason == "trained context"


def test_the_trained_context_is_never_allocated_blindly() -> None:
    found = fit([GROUP], weights=100 * MB, trained=10**7, machine=machine(400 * MB), max_seqs=1)
    left = int(400 * MB * USABLE) - 100 * MB - WORKSPACE
    assert found.kv_bytes <= left * KV_SHARE
    assert found.max_model_len == found.blocks[0] * 32 < 10**7
    assert "10000000" in found.reason


def test_what_is_free_counts_where_it_is_less_than_the_limit() -> None:
    small = fit([GROUP], weights=MB, trained=10**7, machine=machine(4096 * MB, 400 * MB), max_seqs=1)
    large = fit([GROUP], weights=MB, trained=10**7, machine=machine(4096 * MB), max_seqs=1)
    assert small.kv_bytes < large.kv_bytes


def test_weights_that_do_not_fit_are_refused_with_both_numbers() -> None:
    with pytest.raises(CapacityError, match=r"weights need 1\.0 GB .* may use 188\.7 MB \(a test\)"):
        fit([GROUP], weights=10**9, trained=100, machine=machine(200 * MB), max_seqs=1)


def test_a_length_as_asked_is_given_or_refused() -> None:
    found = fit([GROUP], weights=MB, trained=5000, machine=machine(4096 * MB), max_seqs=1, max_model_len=100)
    assert (found.max_model_len, found.blocks) == (100, (4,))
    with pytest.raises(ConfigError, match="6000, but the model was trained for 5000"):
        fit([GROUP], weights=MB, trained=5000, machine=machine(4096 * MB), max_seqs=1, max_model_len=6000)
    with pytest.raises(CapacityError, match="5000 tokens need"):
        fit(
            [GROUP],
            weights=MB,
            trained=5000,
            machine=machine(4096 * MB),
            max_seqs=1,
            max_model_len=5000,
            kv_memory=10 * BLOCK,
        )


def test_a_context_beyond_all_use_is_taken_only_when_asked_for() -> None:
    limits = {"weights": MB, "machine": machine(1 << 44), "max_seqs": 1, "trained": 2**31 - 1}
    found = fit([GROUP], tables=64, **limits)
    assert found.max_model_len == LONGEST
    assert found.blocks == (LONGEST // 32,)
    assert "2147483647" in found.reason
    assert fit([GROUP], tables=64, max_model_len=2 * LONGEST, **limits).max_model_len == 2 * LONGEST


def test_tables_of_positions_count() -> None:
    limits = {"weights": MB, "machine": machine(512 * MB), "max_seqs": 1, "trained": 10**6}
    free = fit([GROUP], **limits)
    found = fit([GROUP], tables=4096, **limits)
    left = int(512 * MB * USABLE) - MB - WORKSPACE
    assert 4096 * found.max_model_len + found.kv_bytes <= left
    assert found.max_model_len < free.max_model_len
    with pytest.raises(CapacityError, match=r"200000 tokens need .* of position tables"):
        fit([GROUP], tables=4096, max_model_len=200_000, **limits)


def test_kv_memory_bounds_the_blocks() -> None:
    found = fit(
        [GROUP, GROUP],
        weights=MB,
        trained=5000,
        machine=machine(4096 * MB),
        max_seqs=8,
        kv_memory=10 * BLOCK + 5,
    )
    assert found.blocks == (5, 5)
    assert found.max_model_len == 160
    with pytest.raises(CapacityError, match="kv_memory is"):
        fit([GROUP], weights=MB, trained=9, machine=machine(512 * MB), max_seqs=1, kv_memory=1 << 40)
    with pytest.raises(CapacityError, match="32 tokens need"):
        fit([GROUP], weights=MB, trained=9, machine=machine(512 * MB), max_seqs=1, kv_memory=10)


def test_a_window_group_gets_what_its_windows_need() -> None:
    narrow = KvGroup(layers=(2, 3), heads=2, k_dim=64, v_dim=64, kind="window", window=100)
    limits = {"trained": 100_000, "max_seqs": 2, "max_slice": 64}
    found = fit([GROUP, narrow], weights=MB, machine=machine(1 << 40), **limits)
    assert found.max_model_len == 100_000
    assert found.blocks == (2 * 3125, 2 * 7)  # 100 + 64 rows touch 7 blocks at worst
    assert found.kv_bytes == (2 * 3125 + 2 * 7) * BLOCK
    # All rows of a step are one request's or divided: each has 6 blocks at any time, the 64 rows one more.
    together = fit([GROUP, narrow], weights=MB, machine=machine(1 << 40), max_rows=64, **limits)
    assert together.blocks == (2 * 3125, 2 * 6 + 1)
    # What the narrow layers leave goes to the others.
    tight = fit([GROUP, narrow], weights=MB, machine=machine(1 << 40), kv_memory=1014 * BLOCK, **limits)
    assert tight.blocks == (1000, 14)
    assert tight.max_model_len == 32_000


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("1k", 1000), ("512M", 512 * 10**6), ("2GiB", 2 << 30), ("1.5 gb", 1_500_000_000)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text, "--kv-memory") == count


@pytest.mark.parametrize("text", ["", "lots", "-1", "1X", "1e9", "M"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        parse_bytes(text, "--kv-memory")


def test_kv_types() -> None:
    assert parse_kv_dtype("f16") == ("f16", "f16")
    assert parse_kv_dtype("f16, f32") == ("f16", "f32")
    for bad in ("", ",f16", "f16,"):
        with pytest.raises(ConfigError, match="kv_dtype"):
            parse_kv_dtype(bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [("threads", 0), ("threads", True), ("max_seqs", 0), ("max_model_len", -1), ("kv_memory", 1.5)],
)
def test_options_are_checked_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        Options(**{field: value})


def test_more_requests_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_step_tokens"):
        Options(max_seqs=100, max_step_tokens=64)
