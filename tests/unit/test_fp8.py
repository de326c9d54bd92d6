"""FP8 weights of folders: every way that scales come in gives the values that codes times scales are."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spola.backends.native import NativeRunner
from spola.backends.reference.blocks import decode
from spola.backends.reference.runner import ReferenceRunner
from spola.core.dtype import BY_NAME
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.formats.gguf_write import write_gguf
from spola.formats.output import NewTensor
from spola.formats.safetensors_folder import open_folder
from spola.load.hf_folder import open_hf_folder
from spola.load.resolve import resolve_model
from support.blocks import e4m3_codes, encode
from support.drive import Driver, Job, greedy
from support.hf_tokenizer import write_tokenizer
from support.tiny import Tiny, TinyModel, write_tiny_safetensors

ROWS, COLUMNS = 160, 192
RNG = np.random.default_rng(3)
WEIGHTS = RNG.normal(0, 0.1, (ROWS, COLUMNS)).astype(np.float32)
NAME = "model.layers.0.mlp.up_proj.weight"


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """A safetensors file of (type, array) by name; any type."""
    header: dict[str, Any] = {}
    data = b""
    for name, (kind, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def layouts() -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
    """Name of the scale tensor's end -> its array, and the scale of every weight."""
    largest = np.abs(WEIGHTS)
    padded = np.pad(largest, ((0, 96), (0, 64))).reshape(2, 128, 2, 128)
    square = (padded.max(axis=(1, 3)) / 448).astype(np.float32)
    row = (largest.max(axis=1, keepdims=True) / 448).astype(np.float32)
    whole = np.array(largest.max() / 448, np.float32)
    wide = np.repeat(np.repeat(square, 128, 0), 128, 1)[:ROWS, :COLUMNS]
    return {
        "tensor": ("_scale", whole, np.broadcast_to(whole, WEIGHTS.shape)),
        "tensor of one": ("_scale", whole.reshape(1), np.broadcast_to(whole, WEIGHTS.shape)),
        "row": ("_scale", row, np.broadcast_to(row, WEIGHTS.shape)),
        "rows": ("_scale", row[:, 0], np.broadcast_to(row, WEIGHTS.shape)),
        "square": ("_scale_inv", square, wide),
        "none": ("", np.zeros(0), np.ones_like(WEIGHTS)),
    }


@pytest.mark.parametrize("layout", layouts())
def test_codes_times_scales(tmp_path: Path, layout: str) -> None:
    end, scale, wide = layouts()[layout]
    codes = e4m3_codes(WEIGHTS / wide)
    tensors = {NAME: ("F8_E4M3", codes), "other.input_scale": ("F32", np.ones(1, np.float32))}
    if end:
        tensors[NAME + end] = ("F32", scale)
    write(tmp_path / "model.safetensors", tensors)
    ones = encode("F8_E4M3", np.zeros((ROWS, COLUMNS)))
    with open_folder(tmp_path) as file:
        assert set(file.tensors) == {NAME}
        assert file.unscaled == ([] if end else [NAME])
        data = file.read(NAME)
        row = COLUMNS // 64 * 68
        part = bytearray(7 * row)
        file.read_into(NAME, memoryview(part), 130 * row)
        assert part == data[130 * row : 137 * row]
        assert file.read_range(NAME, 101, 333) == data[101:434]
    assert len(data) == len(ones)
    assert np.array_equal(decode("F8_E4M3", data, ROWS, COLUMNS), value(codes) * wide)


def value(codes: np.ndarray) -> np.ndarray:
    """By sign, exponent and mantissa."""
    sign = np.where(codes & 128, np.float32(-1), np.float32(1))
    exponent, mantissa = (codes >> 3 & 15).astype(int), codes & 7
    magnitude = np.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa * 2.0**-9)
    return sign * magnitude.astype(np.float32)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_scales_of_other_types(tmp_path: Path, kind: str) -> None:
    scale = np.array([0.0625, 3.5], np.float32)
    raw = np.frombuffer(encode(kind, scale), "<u2").reshape(2, 1)
    write(
        tmp_path / "model.safetensors",
        {NAME: ("F8_E4M3", e4m3_codes(WEIGHTS[:2])), f"{NAME}_scale": (kind, raw)},
    )
    with open_folder(tmp_path) as file:
        got = decode("F8_E4M3", file.read(NAME), 2, COLUMNS)
    assert np.array_equal(got, value(e4m3_codes(WEIGHTS[:2])) * scale[:, None])


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    codes = e4m3_codes(WEIGHTS)
    write(path, {NAME: ("F8_E4M3", codes), f"{NAME}_scale": ("F32", np.ones(5, np.float32))})
    with pytest.raises(ModelError, match=r"up_proj.weight_scale' of shape \(5,\) has no scale for each"):
        open_folder(tmp_path)
    write(path, {NAME: ("F8_E4M3", codes[:, :48])})
    with open_folder(tmp_path) as file, pytest.raises(ModelError, match="F8_E4M3, which spola does not"):
        file.read(NAME)
    write(path, {NAME: ("F8_E4M3", codes), f"{NAME}_scale": ("F8_E8M0", np.ones(1, np.uint8))})
    with pytest.raises(ModelError, match="scales of type F8_E8M0; they must be F32"):
        open_folder(tmp_path)
    with pytest.raises(ValueError, match="F8_E4M3"):
        write_gguf(tmp_path / "x.gguf", {}, [NewTensor("w", BY_NAME["F8_E4M3"], (1, 64), bytes(68))])


def folder_of_fp8(folder: Path, tiny: Tiny) -> TinyModel:
    """A folder of the tiny model with matrices in FP8; returns the model with what they decode to, in F32."""
    write_tiny_safetensors(folder, tiny)
    source = folder / "model.safetensors"
    raw = source.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        values = np.frombuffer(raw[8 + size + begin : 8 + size + end], np.float32).reshape(row["shape"])
        if "_proj" not in name:
            tensors[name] = (row["dtype"], values)
            continue
        scale = (np.abs(values).max(axis=1, keepdims=True) / 448).astype(np.float32)
        tensors[name] = ("F8_E4M3", e4m3_codes(values / scale))
        tensors[f"{name}_scale"] = ("F32", scale)
    write(source, tensors)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    (folder / "config.json").write_text(json.dumps(config))
    model = TinyModel(tiny)
    write_tokenizer(folder, model.metadata)
    return model


class AsF32:
    """The tensors of an opened model, FP8 decoded."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __iter__(self) -> Any:
        for tensor in self.model.tensors():
            if tensor.dtype != "F8_E4M3":
                yield tensor
                continue
            values = decode("F8_E4M3", tensor.data, int(np.prod(tensor.shape[:-1])), tensor.shape[-1])
            yield Tensor(tensor.name, "F32", tensor.shape, memoryview(values.tobytes()))


@pytest.mark.parametrize("make", [NativeRunner, ReferenceRunner])
def test_a_folder_runs_as_its_values_in_f32_do(tmp_path: Path, make: Any) -> None:
    """Bit for bit on the native backend: weights are decoded to f32 and multiplied as F32 weights are."""
    tiny = Tiny(seed=4, layers=2, hidden=128, ff=192, heads=4, kv_heads=2, head_dim=32)
    model = folder_of_fp8(tmp_path, tiny)
    jobs = [Job(list(range(5, 40)), 6, greedy()), Job([7], 4, greedy())]
    found = []
    for decoded in (False, True):
        with open_hf_folder(resolve_model(str(tmp_path))) as opened:
            assert sum(kind == "F8_E4M3" for kind in opened.dtypes.values()) == 14
            runner, config = make(), model.config(blocks=20, threads=2)
            runner.load(opened.spec, AsF32(opened) if decoded else opened.tensors(), config)
        found.append([(out.ids, out.logprobs) for out in Driver(runner, config, tiny.vocab).run(jobs, 16)])
    assert found[0] == found[1]


def test_a_quantized_folder_without_scales_is_refused(tmp_path: Path) -> None:
    folder_of_fp8(tmp_path, Tiny(hidden=128, ff=192, heads=4, kv_heads=2, head_dim=32))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"q_proj.weight_scale", b"q_proj.weight_xcale"))
    with pytest.raises(ModelError, match=r"has no scales for tensor model\.layers\.0\.self_attn\.q_proj"):
        open_hf_folder(resolve_model(str(tmp_path)))
