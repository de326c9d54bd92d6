"""Native quantizers against the ``gguf`` package, the table of types, and ``spola quantize`` on
whole files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from spola import LLM, SamplingParams
from spola.backends.native.convert import convert_rows
from spola.cli import main as cli
from spola.core.errors import ModelError
from spola.formats.gguf import open_gguf
from spola.load.model import open_model
from spola.load.resolve import resolve_model
from spola.runtime.weights import converter, with_weights
from spola.spec.weight_types import target_type
from support.hf_tokenizer import write_tokenizer
from support.tiny import Tiny, write_tiny_gguf, write_tiny_safetensors

PLAIN = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def rows(seed: int = 0, columns: int = 512) -> np.ndarray:
    """Weights with the blocks that rounding trips over: zeros, constants, whole numbers, tiny and large
    values.
    """
    values = np.random.default_rng(seed).standard_normal((24, columns)).astype(np.float32) * 0.05
    values[1, :64] = 0
    values[2, :64] = 1
    values[3, :32] = np.arange(32) - 16
    values[4, :64] *= 1e-30
    values[5, :64] *= 1e4
    values[6, 7] = 30
    values[7, :32] = np.abs(values[7, :32])
    values[8, :32] = -np.abs(values[8, :32])
    return values


def convert(values: np.ndarray, target: str, threads: int = 1) -> bytes:
    return bytes(convert_rows("F32", target, *values.shape, values.tobytes(), threads))


@pytest.mark.parametrize("name", PLAIN)
def test_bytes_are_those_of_the_gguf_package(name: str) -> None:
    values = rows()
    assert convert(values, name) == gguf.quantize(values, gguf.GGMLQuantizationType[name]).tobytes()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_fitted_types_are_nearer_than_their_grid(name: str) -> None:
    values = rows(1)
    raw = np.frombuffer(convert(values, name), np.uint8).reshape(len(values), -1)
    back = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert np.isfinite(back).all()
    plain = values[9:]
    worst = {"Q4_K": 0.075, "Q6_K": 0.02}[name]
    assert np.sqrt(((plain - back[9:]) ** 2).mean() / (plain**2).mean()) < worst
    # No worse than Q4_0 and Q5_0 with as fine a grid and blocks as large as a sub-block.
    coarse = {"Q4_K": "Q4_0", "Q6_K": "Q5_0"}[name]
    kind = gguf.GGMLQuantizationType[coarse]
    other = gguf.dequantize(gguf.quantize(plain, kind), kind)
    assert ((plain - back[9:]) ** 2).mean() < ((plain - other) ** 2).mean()
    assert np.abs(back[1, :64]).max() == 0


@pytest.mark.parametrize("name", [*PLAIN, "Q4_K", "Q6_K"])
def test_threads_and_parts_do_not_show(name: str) -> None:
    values = rows(2)
    whole = convert(values, name, 5)
    assert whole == b"".join(convert(values[i : i + 7], name) for i in range(0, len(values), 7))


@pytest.mark.parametrize("source", ["Q4_1", "Q6_K", "Q8_0", "F16"])
def test_decoding_is_that_of_the_gguf_package(source: str) -> None:
    raw = convert(rows(3), source)
    back = np.frombuffer(convert_rows(source, "F32", 24, 512, raw, 2), np.float32)
    kind = gguf.GGMLQuantizationType[source]
    stored = np.frombuffer(raw, np.float16 if source == "F16" else np.uint8).reshape(24, -1)
    assert np.array_equal(back, gguf.dequantize(stored, kind).reshape(-1))


@pytest.mark.parametrize(
    ("target", "at", "value", "why"),
    [("Q8_0", 3, np.nan, "row 3"), ("BF16", 5, np.inf, "row 5"), ("F16", 2, 1e6, "row 2 .* too large")],
)
def test_values_that_cannot_be_stored(target: str, at: int, value: float, why: str) -> None:
    values = rows(4)
    values[at, 11] = value
    with pytest.raises(ValueError, match=why):
        convert(values, target, 3)


def test_the_table_of_types() -> None:
    assert target_type("linear", 576, "Q4_K", is_head=False) == "Q5_0"
    assert target_type("linear", 576, "Q6_K", is_head=False) == "Q8_0"
    assert target_type("linear", 50, "Q4_0", is_head=False) == "F16"
    assert target_type("embedding", 1024, "Q4_0", is_head=True) == "Q6_K"
    assert target_type("head", 576, "Q4_1", is_head=True) == "Q8_0"
    assert target_type("embedding", 1024, "Q4_0", is_head=False) == "Q4_0"
    assert target_type("router", 1024, "Q4_0", is_head=False) == "F32"


def run(*args: Any) -> Any:
    result = CliRunner().invoke(cli, [str(a) for a in args], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def test_a_file_keeps_what_is_not_a_weight(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "f32.gguf", Tiny(dtype="F32", hidden=256, ff=512))
    found = json.loads(
        run("quantize", tmp_path / "f32.gguf", "-o", tmp_path / "q.gguf", "--type", "q4_k", "--json").stdout
    )
    assert found["type"] == "Q4_K"
    assert found["bytes"] == (tmp_path / "q.gguf").stat().st_size
    with open_gguf(tmp_path / "f32.gguf") as old, open_gguf(tmp_path / "q.gguf") as new:
        added = {"general.file_type", "general.quantization_version"}
        assert {k: v for k, v in new.metadata.items() if k not in added} == {
            k: v for k, v in old.metadata.items() if k not in added
        }
        assert new.metadata["general.file_type"] == 14
        assert {k: v for k, v in new.types.items() if k not in added} == {
            k: v for k, v in old.types.items() if k not in added
        }
        assert [e.name for e in new.tensors.values()] == [e.name for e in old.tensors.values()]
        kinds = {name: entry.dtype.name for name, entry in new.tensors.items()}
        assert kinds["blk.0.attn_q.weight"] == "Q4_K"
        assert kinds["token_embd.weight"] == "Q6_K"
        assert kinds["blk.0.attn_norm.weight"] == "F32"
        values = np.frombuffer(old.read("blk.1.ffn_up.weight"), np.float32).reshape(512, 256)
        assert bytes(new.read("blk.1.ffn_up.weight")) == convert(values, "Q4_K")


def test_loading_quantized_is_loading_the_quantized_file(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "f32.gguf", Tiny(dtype="F32"))
    run("quantize", tmp_path / "f32.gguf", "-o", tmp_path / "q8.gguf", "--type", "q8_0")
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True, logprobs=2)
    found = []
    for name, weights in (("f32.gguf", "q8_0"), ("q8.gguf", None)):
        with LLM(str(tmp_path / name), kv_memory=8 << 20, weights=weights) as llm:
            output = llm.generate("the rain", params)[0].outputs[0]
            found.append((output.token_ids, [str(entry) for entry in output.logprobs]))
    assert found[0] == found[1]


def test_a_folder_quantized_while_loading_is_the_file_made_of_it(tmp_path: Path) -> None:
    model = write_tiny_safetensors(tmp_path / "hf", Tiny(dtype="F32"), dtype="BF16")
    write_tokenizer(tmp_path / "hf", model.metadata)
    run("quantize", tmp_path / "hf", "-o", tmp_path / "q4.gguf", "--type", "q4_0")
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    found = []
    for name, weights in (("hf", "q4_0"), ("q4.gguf", None)):
        with LLM(str(tmp_path / name), kv_memory=8 << 20, weights=weights) as llm:
            found.append(llm.generate("the rain", params)[0].outputs[0].token_ids)
    # Rows of q and k lie in another order, which changes no value of a head.
    assert found[0] == found[1]


def test_requantize_writes_the_values_that_are_there(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "q4.gguf", Tiny())
    out = tmp_path / "f16.gguf"
    run("quantize", tmp_path / "q4.gguf", "-o", out, "--type", "f16", "--requantize")
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "q4.gguf").tensors}
    types = set()
    for tensor in gguf.GGUFReader(out).tensors:
        old = before[tensor.name]
        types.add((old.tensor_type.name, tensor.tensor_type.name))
        expected = gguf.quants.dequantize(old.data, old.tensor_type)
        if tensor.tensor_type.name == "F16":
            expected = expected.astype("f2").astype("f4")
        assert np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), expected), tensor.name
    assert ("Q4_1", "F16") in types


def test_faults_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "q4.gguf", Tiny())
    write_tiny_gguf(tmp_path / "f32.gguf", Tiny(dtype="F32"))
    out = tmp_path / "out.gguf"
    with pytest.raises(ModelError, match="is Q4_1 already"):
        run("quantize", tmp_path / "q4.gguf", "-o", out, "--type", "q8_0")
    with pytest.raises(ModelError, match="is Q4_1 already"):
        LLM(str(tmp_path / "q4.gguf"), weights="q8_0")
    with pytest.raises(Exception, match="is the model itself"):
        run("quantize", tmp_path / "f32.gguf", "-o", tmp_path / "f32.gguf", "--type", "q8_0")
    with pytest.raises(Exception, match="does not exist"):
        run("quantize", tmp_path / "f32.gguf", "-o", tmp_path / "no" / "x.gguf", "--type", "q8_0")
    assert not out.exists()
    assert not list(tmp_path.glob("*.part"))


def test_a_value_that_is_not_finite_names_its_tensor(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "f32.gguf", Tiny(dtype="F32"))
    with open_gguf(tmp_path / "f32.gguf") as file:
        offset = file.entry("blk.1.ffn_down.weight").offset
    data = bytearray((tmp_path / "f32.gguf").read_bytes())
    data[offset + 400 : offset + 404] = np.float32(np.nan).tobytes()
    (tmp_path / "f32.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_down\.weight cannot be stored as Q8_0: row 0"):
        run("quantize", tmp_path / "f32.gguf", "-o", tmp_path / "out.gguf", "--type", "q8_0")


def test_only_parts_of_a_large_tensor_are_held(tmp_path: Path) -> None:
    """The file's rows go through in parts: no read is of more than some megabytes."""
    write_tiny_gguf(
        tmp_path / "big.gguf", Tiny(dtype="F32", hidden=512, ff=64, heads=8, head_dim=64, vocab=20000)
    )
    with open_model(resolve_model(str(tmp_path / "big.gguf"))) as model:
        sizes: list[int] = []
        read_into = model.file.read_into

        def watched(name: str, buffer: memoryview, start: int = 0) -> None:
            sizes.append(buffer.nbytes)
            read_into(name, buffer, start)

        model.file.read_into = watched  # type: ignore[method-assign]
        given = [t.dtype for t in with_weights(model, "Q8_0").tensors(converter(1)) if "embedding" in t.name]
    assert given == ["Q8_0"]
    assert max(sizes) <= 17 << 20
    assert sum(sizes) > 20000 * 512 * 4
