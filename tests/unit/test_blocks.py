"""The reference decoding of every block type: bit-equal to the gguf package, and to its own codes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from spola.backends.reference.blocks import LAYOUTS, QUANTIZED, check_finite, codes, decode
from spola.core.dtype import BY_GGUF_ID, BY_NAME
from spola.core.errors import ModelError
from support.blocks import ENCODABLE, encode, make_tensor, random_blocks

ROWS, COLS = 6, 512
ALL = tuple(kind.name for kind in BY_GGUF_ID.values())
GROUP = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16}
WITH_MIN = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}
RANGE = {
    "Q4_0": (-8, 7),
    "Q4_1": (0, 15),
    "Q5_0": (-16, 15),
    "Q5_1": (0, 31),
    "Q8_0": (-128, 127),
    "Q2_K": (0, 3),
    "Q3_K": (-4, 3),
    "Q4_K": (0, 15),
    "Q5_K": (0, 31),
    "Q6_K": (-32, 31),
    "IQ4_NL": (-127, 113),
    "IQ4_XS": (-127, 113),
    "MXFP4": (-12, 12),
}


def _random_bytes(dtype: str, seed: int) -> bytes:
    """Any bits at all, only without scales that are NaN or infinite."""
    kind = BY_NAME[dtype]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, ROWS * COLS // kind.block * kind.block_bytes, dtype=np.uint8)
    if dtype in LAYOUTS:
        blocks = raw.view(LAYOUTS[dtype])
        for field in ("d", "m", "dmin"):
            if field in LAYOUTS[dtype].fields:
                bits = blocks[field].view(np.uint16)
                blocks[field] = np.where(bits & 0x7C00 == 0x7C00, bits ^ 0x4000, bits).view(np.float16)
        if dtype == "MXFP4":
            blocks["e"] = np.minimum(blocks["e"], 252)
    return raw.tobytes()


def _oracle(dtype: str, data: bytes) -> np.ndarray:
    raw = np.frombuffer(data, dtype=np.uint8).reshape(ROWS, -1)
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[dtype])


def _assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.astype(np.float32).view(np.uint32)[~nan])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ALL)
def test_random_bytes_decode_to_the_same_bits(dtype: str, seed: int) -> None:
    data = _random_bytes(dtype, seed)
    with np.errstate(invalid="ignore"):
        theirs = _oracle(dtype, data)
    ours = decode(dtype, data, ROWS, COLS)
    if dtype in QUANTIZED:
        assert np.isfinite(ours).all()
    _assert_same_bits(ours, theirs)


def test_every_exponent_of_mxfp4() -> None:
    blocks = np.zeros(256, dtype=LAYOUTS["MXFP4"])
    blocks["e"] = np.arange(256)
    blocks["qs"] = np.random.default_rng(0).integers(0, 256, (256, 16))
    data = blocks.tobytes()
    with np.errstate(over="ignore"):
        theirs = gguf.dequantize(np.frombuffer(data, dtype=np.uint8), gguf.GGMLQuantizationType.MXFP4)
    _assert_same_bits(decode("MXFP4", data, 256, 32), theirs.reshape(256, 32))


@pytest.mark.parametrize("dtype", sorted(QUANTIZED))
def test_codes_are_the_decoding(dtype: str) -> None:
    data = _random_bytes(dtype, 7)
    parts = codes(dtype, data, ROWS, COLS)
    group = GROUP.get(dtype, 32)
    assert parts.group == group
    assert parts.q.dtype == np.int8
    assert parts.q.shape == (ROWS, COLS)
    assert parts.scale.shape == (ROWS, COLS // group)
    assert parts.scale.dtype == np.float32
    assert (parts.min is not None) == (dtype in WITH_MIN)
    low, high = RANGE[dtype]
    assert low <= parts.q.min() <= parts.q.max() <= high
    if dtype != "Q8_0":
        assert (parts.q.min(), parts.q.max()) == (low, high)
    expected = parts.q.astype(np.float32) * np.repeat(parts.scale, group, axis=1)
    if parts.min is not None:
        expected = expected + np.repeat(parts.min, group, axis=1)
    _assert_same_bits(expected, decode(dtype, data, ROWS, COLS))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, dtype=np.uint8)])
def test_any_buffer_is_taken(wrap: type) -> None:
    data = _random_bytes("Q4_1", 1)
    assert np.array_equal(decode("Q4_1", wrap(data), ROWS, COLS), decode("Q4_1", data, ROWS, COLS))


@pytest.mark.parametrize(
    ("dtype", "rows", "cols", "size", "message"),
    [
        ("Q4_0", 1, 32, 17, "are 18 bytes, not 17"),
        ("Q4_0", 1, 33, 18, "whole Q4_0 blocks of 32"),
        ("Q6_K", 2, 128, 210, "whole Q6_K blocks of 256"),
        ("F32", 0, 4, 0, "whole F32 blocks"),
        ("Q8_K", 1, 256, 292, "Q8_K is no type"),
    ],
)
def test_wrong_sizes_are_refused(dtype: str, rows: int, cols: int, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(dtype, bytes(size), rows, cols)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_plain_types_have_no_codes(dtype: str) -> None:
    with pytest.raises(ValueError, match="has no integer codes"):
        codes(dtype, encode(dtype, np.zeros((1, 4))), 1, 4)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", sorted(QUANTIZED - {"MXFP4"}))
def test_a_scale_that_is_not_finite_is_found(dtype: str, bad: float) -> None:
    rng = np.random.default_rng(0)
    for field in ("d", "m", "dmin"):
        blocks = np.frombuffer(bytearray(make_tensor(dtype, ROWS, COLS, rng)), dtype=LAYOUTS[dtype])
        check_finite("w", decode(dtype, blocks.tobytes(), ROWS, COLS))
        if field not in LAYOUTS[dtype].fields:
            continue
        blocks[field].reshape(ROWS, -1)[4, 1] = bad
        with pytest.raises(ModelError, match="tensor 'w': row 4 holds"):
            check_finite("w", decode(dtype, blocks.tobytes(), ROWS, COLS))


def test_an_overflowing_mxfp4_block_is_found() -> None:
    blocks = np.zeros(1, dtype=LAYOUTS["MXFP4"])
    blocks["e"], blocks["qs"] = 255, 0x77
    with pytest.raises(ModelError, match="row 0 holds inf"):
        check_finite("w", decode("MXFP4", blocks.tobytes(), 1, 32))


@pytest.mark.parametrize("dtype", [name for name in ENCODABLE if name in ALL])
def test_encoders_equal_the_gguf_package(dtype: str) -> None:
    rng = np.random.default_rng(11)
    weights = rng.normal(0, 1, (ROWS, COLS)).astype(np.float32)
    weights[0, :32] = 0
    weights[1, :32] = 2.5
    theirs = gguf.quantize(weights, gguf.GGMLQuantizationType[dtype]).tobytes()
    assert encode(dtype, weights) == theirs


@pytest.mark.parametrize("dtype", [name for name in ENCODABLE if name in ALL])
def test_encoding_is_near(dtype: str) -> None:
    weights = np.random.default_rng(2).uniform(-1, 1, (ROWS, COLS)).astype(np.float32)
    # Half a step of the type over a range of 2 (or a relative step of the significand), plus f16 scales.
    step = {"F32": 0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 254}
    bits = 5 if dtype.startswith("Q5") else 4
    bound = step.get(dtype, 2**-bits * 2.0) + 2**-9
    assert np.abs(decode(dtype, encode(dtype, weights), ROWS, COLS) - weights).max() <= bound


@pytest.mark.parametrize("dtype", sorted(QUANTIZED))
def test_random_blocks_have_the_spread_asked_for(dtype: str) -> None:
    data = random_blocks(dtype, 32, 512, np.random.default_rng(4), std=0.05)
    weights = decode(dtype, data, 32, 512)
    assert 0.03 < weights.std() < 0.08
    assert abs(weights.mean()) < 0.02
