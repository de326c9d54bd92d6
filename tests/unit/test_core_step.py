"""Steps are plain data: they survive serialization exactly."""

import msgspec
import pytest

from spola.core.params import SamplingParams
from spola.core.runner import KvGroup
from spola.core.step import (
    BlockCopy,
    RequestState,
    Slice,
    Step,
    decode_step,
    encode_step,
    pack_ids,
    unpack_ids,
)


def full_step() -> Step:
    params = SamplingParams(temperature=0.7, seed=-5, logit_bias={3: -1.5}, stop=("x", "歪"), logprobs=2)
    state = RequestState(7, 1, 2**64 - 1, pack_ids([1, 2, 3, 4]), 3, params, None, "sample")
    part = Slice(7, 2, pack_ids([3, 4]), (pack_ids([9]), pack_ids([2])), 2, 1, pack_ids([5, 6]), b"\xff" * 8)
    return Step(3, (part,), (state,), (1, 2), (BlockCopy(0, 4, 5),), ((1, 6),))


def test_a_step_comes_back_equal():
    step = full_step()
    assert decode_step(encode_step(step)) == step
    assert encode_step(decode_step(encode_step(step))) == encode_step(step)


def test_foreign_bytes_are_refused():
    with pytest.raises(msgspec.DecodeError):
        decode_step(b"\x91\xa1x")


def test_rows_are_counted_over_slices():
    step = full_step()
    assert step.slices[0].n == 2
    assert step.n_rows == 2


def test_ids_are_little_endian_int32():
    assert pack_ids([1, -2]) == b"\x01\x00\x00\x00\xfe\xff\xff\xff"
    assert list(unpack_ids(pack_ids([0, 2**31 - 1]))) == [0, 2**31 - 1]


def test_kv_bytes_of_smollm2_are_the_textbook_ones():
    group = KvGroup(layers=tuple(range(30)), heads=3, k_dim=64, v_dim=64)
    assert group.bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23_040
    assert group.bytes_per_block == 23_040 * 32
