"""One seeded tiny model, written as GGUF and as safetensors, read back: the same tokens on every backend."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spola.core.runner import Tensor
from spola.formats.gguf import open_gguf
from spola.formats.safetensors import open_safetensors
from spola.spec.decoder import DecoderSpec, Rope
from spola.spec.from_gguf import from_gguf
from spola.spec.manifest import manifest
from support.drive import Driver, Job
from support.tiny import Tiny, TinyModel, write_tiny_gguf, write_tiny_safetensors

GOLDEN = json.loads((Path(__file__).parents[1] / "fixtures" / "golden.json").read_text())
PROMPTS = [[1, 40, 70, 100, 3], list(range(60, 100)), [259]]
MODELS = {
    "float": Tiny(seed=30, dtype="F32", tied=False, biases=True),
    "quantized": Tiny(seed=22, dtype="Q4_1", dtypes={"embedding": "Q8_0"}),
    "k_quants": Tiny(
        seed=115,
        hidden=256,
        ff=256,
        head_dim=64,
        dtype="Q4_K",
        dtypes={"embedding": "Q6_K", "mlp.down": "Q5_K"},
    ),
}


def generate(bench, model: TinyModel, spec: DecoderSpec, tensors: list[Tensor]) -> list[list[int]]:
    runner, config = bench.runner(), model.config(kv="f32")
    runner.load(spec, tensors, config)
    outcomes = Driver(runner, config, spec.vocab).run([Job(prompt, 16) for prompt in PROMPTS])
    for out in outcomes:  # a golden with a near tie would prove nothing
        assert min(entry.top[0][1] - entry.top[1][1] for entry in out.logprobs) > 0.01
    return [out.ids for out in outcomes]


@pytest.mark.parametrize("name", MODELS)
def test_gguf(bench, tmp_path: Path, name: str) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", MODELS[name])
    with open_gguf(tmp_path / "tiny.gguf") as file:
        table = {key: (entry.dtype.name, entry.shape) for key, entry in file.tensors.items()}
        spec, warnings = from_gguf(file.metadata, table)
        assert warnings == []
        tensors = [
            Tensor(info.name, table[info.gguf][0], info.shape, file.read(info.gguf))
            for info in manifest(spec)
        ]
    assert generate(bench, model, spec, tensors) == GOLDEN[name]


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_safetensors(bench, tmp_path: Path, dtype: str) -> None:
    """Rope in halves, q and k rows where the checkpoint has them; bf16 rounds, to the same tokens."""
    model = write_tiny_safetensors(tmp_path, MODELS["float"], dtype)
    spec = replace(model.spec, layers=tuple(halved(layer) for layer in model.spec.layers))
    with open_safetensors(tmp_path / "model.safetensors") as file:
        tensors = []
        for info in manifest(spec):
            name = info.hf[0]
            tensors.append(Tensor(info.name, file.tensors[name].dtype.name, info.shape, file.read(name)))
    assert {t.dtype for t in tensors if len(t.shape) == 2} == {dtype}
    assert generate(bench, model, spec, tensors) == GOLDEN["float"]


def halved(layer):
    rope = layer.attention.positions
    assert isinstance(rope, Rope)
    return replace(layer, attention=replace(layer.attention, positions=replace(rope, layout="half")))


def test_the_same_seed_gives_the_same_bytes() -> None:
    for tiny in MODELS.values():
        assert [t.data for t in TinyModel(tiny)] == [t.data for t in TinyModel(tiny)]
    assert np.abs(TinyModel(MODELS["float"]).array("final_norm.weight") - 1).max() < 1
