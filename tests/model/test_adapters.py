"""LoRA adapters: equal to weights with the adapter added in, on every family; and refused when malformed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_families import case_of, make_runner

from spola.backends.native.convert import convert_rows
from spola.core.errors import ModelError
from spola.formats.gguf import open_gguf
from spola.formats.json_file import read_json
from spola.formats.safetensors_folder import open_folder
from spola.load.adapter import open_adapter
from spola.load.weights import iter_tensors
from spola.spec.decoder import DecoderSpec
from spola.spec.from_gguf import from_gguf, gguf_sources
from spola.spec.from_hf import from_hf
from spola.spec.manifest import manifest
from support.adapters import adapter_tensors, merged, write_adapter
from support.families import Case, Run, write_folder
from support.family_gguf import write_case_gguf

FAMILIES = (
    "llama-biases",
    "llama3",
    "phi3",
    "gpt2",
    "gpt_neox",
    "falcon",
    "falcon-new",
    "gemma2",
    "gemma3-small",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "mixtral",
    "olmo2",
    "phi",
    "stablelm",
    "starcoder2",
    "cohere",
    "glm4",
    "smollm3",
    "granite",
    "internlm2",
    "deepseek_v2",
    "deepseek_v2-lite",
)
KINDS = ("reference", "reference-quantized", "native")


def convert(source: str, target: str, rows: int, columns: int, data: object) -> bytearray:
    return convert_rows(source, target, rows, columns, data, 1)


class Loaded:
    """A case on a runner, from a folder or a GGUF file, with adapters by name."""

    def __init__(self, path: Path, case: Case, kind: str, adapters: dict[str, Path] | None = None) -> None:
        self.runner = make_runner(kind)
        with open_gguf(path) if path.suffix == ".gguf" else open_folder(path) as file:
            table = {name: (entry.dtype.name, entry.shape) for name, entry in file.tensors.items()}
            if path.suffix == ".gguf":
                self.spec, _ = from_gguf(file.metadata, table)  # type: ignore[union-attr]
                sources = gguf_sources(self.spec, table)
            else:
                model = from_hf(read_json(path / "config.json"), table)
                self.spec, sources = model.spec, dict(model.sources)
            config = Run.make_config(self.spec, case.served or self.spec.context)
            config = msgspec.structs.replace(config, max_lora_rank=8 if adapters else 0)
            self.runner.load(self.spec, iter_tensors(file, manifest(self.spec), sources), config)
        for name, folder in (adapters or {}).items():
            self.runner.add_adapter(open_adapter(folder, name, self.spec, convert))
        self.run = Run(self.runner, config, self.spec.vocab)

    def logits(self, case: Case, chunks: tuple[int, ...], adapter: str | None = None) -> np.ndarray:
        self.run.adapter = adapter
        return self.run.logits(case.ids, chunks)


def differ(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((np.abs(found - wanted).max(axis=1) / np.abs(wanted).max(axis=1)).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_adapter_is_what_it_adds_to_the_weights(name: str, kind: str, tmp_path: Path) -> None:
    case = case_of(name)
    tensors = adapter_tensors(case, seed=3)
    write_adapter(tmp_path / "adapter", tensors)
    write_folder(tmp_path / "base", case)
    write_folder(tmp_path / "merged", merged(case, tensors))
    wanted = Loaded(tmp_path / "merged", case, kind).logits(case, (64,))
    plain = Loaded(tmp_path / "base", case, kind).logits(case, (64,))
    loaded = Loaded(tmp_path / "base", case, kind, {"a": tmp_path / "adapter"})
    found = loaded.logits(case, (64,), "a")
    assert differ(found, wanted) < 2e-4
    assert differ(plain, wanted) > 2e-2  # the adapter does something
    # A request without the adapter does not see it.
    assert np.array_equal(loaded.logits(case, (64,)), plain)
    if loaded.runner.capabilities.invariant:
        assert np.array_equal(loaded.logits(case, (1, 7, 30), "a"), found)


@pytest.mark.parametrize(
    "name", ["llama3", "phi3", "gpt_neox", "falcon", "granite", "smollm3", "qwen2", "deepseek_v3"]
)
def test_gguf_and_folder_take_the_same_adapter(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    write_adapter(tmp_path / "adapter", adapter_tensors(case, seed=4))
    write_folder(tmp_path / "base", case)
    write_case_gguf(tmp_path / "base.gguf", case)
    found = [
        Loaded(path, case, "native", {"a": tmp_path / "adapter"}).logits(case, (64,), "a")
        for path in (tmp_path / "base", tmp_path / "base.gguf")
    ]
    assert differ(*found) < 1e-4


@pytest.mark.parametrize("dtype", ["Q4_0", "Q8_0"])
def test_native_is_the_quantized_reference(dtype: str, tmp_path: Path) -> None:
    case = case_of("gemma2")
    write_adapter(tmp_path / "adapter", adapter_tensors(case, seed=5), dtype="BF16")
    write_case_gguf(tmp_path / "base.gguf", case, dtype)
    native, reference = (
        Loaded(tmp_path / "base.gguf", case, kind, {"a": tmp_path / "adapter"}).logits(case, (40,), "a")
        for kind in ("native", "reference-quantized")
    )
    assert differ(native, reference) < 1e-4


def test_half_floats_and_rank_stabilised_scale(tmp_path: Path) -> None:
    case = case_of("llama3")
    tensors = adapter_tensors(case, seed=6, modules=("q_proj", "down_proj"))
    write_folder(tmp_path / "base", case)
    write_adapter(tmp_path / "rs", tensors, dtype="F16", use_rslora=True)
    write_folder(tmp_path / "merged", merged(case, tensors, scale=6.0 / 2.0))
    wanted = Loaded(tmp_path / "merged", case, "native").logits(case, (64,))
    found = Loaded(tmp_path / "base", case, "native", {"rs": tmp_path / "rs"}).logits(case, (64,), "rs")
    assert differ(found, wanted) < 5e-3


def spec_of(tmp_path: Path, name: str = "llama3") -> DecoderSpec:
    write_folder(tmp_path / "base", case_of(name))
    with open_folder(tmp_path / "base") as file:
        table = {n: (entry.dtype.name, entry.shape) for n, entry in file.tensors.items()}
        return from_hf(read_json(tmp_path / "base" / "config.json"), table).spec


Change = Callable[[dict[str, np.ndarray]], None]


def drop_b(tensors: dict[str, np.ndarray]) -> None:
    del tensors[next(name for name in tensors if "lora_B" in name)]


def wide_a(tensors: dict[str, np.ndarray]) -> None:
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = np.zeros((4, 7), np.float32)


def other_rank(tensors: dict[str, np.ndarray]) -> None:
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name] = tensors[name][:, :3]


def stranger(tensors: dict[str, np.ndarray]) -> None:
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] = np.ones(3, np.float32)


def far_layer(tensors: dict[str, np.ndarray]) -> None:
    for which in "AB":
        name = f"base_model.model.model.layers.0.self_attn.q_proj.lora_{which}.weight"
        tensors[name.replace("layers.0.", "layers.99.")] = tensors[name]


def head(tensors: dict[str, np.ndarray]) -> None:
    for which, shape in (("A", (4, 48)), ("B", (90, 4))):
        tensors[f"base_model.model.lm_head.lora_{which}.weight"] = np.ones(shape, np.float32)


def nan(tensors: dict[str, np.ndarray]) -> None:
    next(iter(tensors.values()))[0, 0] = np.nan


def nothing(tensors: dict[str, np.ndarray]) -> None:
    """The tensors stay as they are."""


MALFORMED: list[tuple[str, dict[str, Any], Change]] = [
    ("r must be a rank", {"r": 0}, nothing),
    ("r must be a rank", {"r": "4"}, nothing),
    ("r must be a rank", {"r": True}, nothing),
    ("has shape .* expected", {"r": 8}, nothing),
    ("lora_alpha must be", {"lora_alpha": "x"}, nothing),
    ("lora_alpha must be", {"lora_alpha": 0}, nothing),
    ("use_dora is not supported", {"use_dora": True}, nothing),
    ("use_rslora must be", {"use_rslora": "yes"}, nothing),
    ("bias 'all' is not supported", {"bias": "all"}, nothing),
    ("modules_to_save is not supported", {"modules_to_save": ["lm_head"]}, nothing),
    ("rank_pattern is not supported", {"rank_pattern": {"q_proj": 2}}, nothing),
    ("alpha_pattern is not supported", {"alpha_pattern": {"q_proj": 2}}, nothing),
    ("layer_replication is not supported", {"layer_replication": [[0, 1]]}, nothing),
    ("lora_bias is not supported", {"lora_bias": True}, nothing),
    ("peft_type 'IA3'", {"peft_type": "IA3"}, nothing),
    ("fan_in_fan_out is true", {"fan_in_fan_out": True}, nothing),
    ("target_modules must be a list", {"target_modules": []}, nothing),
    ("target_modules names 'w_pack'", {"target_modules": ["q_proj", "w_pack"]}, nothing),
    ("is not among target_modules", {"target_modules": ["q_proj"]}, nothing),
    ("has lora_A only", {}, drop_b),
    ("has shape .* expected", {}, wide_a),
    ("has shape .* expected", {}, other_rank),
    ("magnitude_vector is not supported", {}, stranger),
    ("layers.99.self_attn.q_proj is none of the matrices", {}, far_layer),
    ("lm_head is none of the matrices", {"target_modules": "all-linear"}, head),
]


@pytest.mark.parametrize(("why", "config", "change"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_adapters_are_refused(
    why: str, config: dict[str, Any], change: Change, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path)
    tensors = adapter_tensors(case_of("llama3"), seed=7)
    change(tensors)
    write_adapter(tmp_path / "adapter", tensors, **config)
    with pytest.raises(ModelError, match=why) as caught:
        open_adapter(tmp_path / "adapter", "a", spec, convert)
    assert str(tmp_path / "adapter") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["reference", "native"])
def test_values_that_are_not_finite_are_refused(kind: str, tmp_path: Path) -> None:
    tensors = adapter_tensors(case_of("llama3"), seed=7)
    nan(tensors)
    write_folder(tmp_path / "base", case_of("llama3"))
    write_adapter(tmp_path / "adapter", tensors)
    with pytest.raises(ModelError, match="not finite"):
        Loaded(tmp_path / "base", case_of("llama3"), kind, {"a": tmp_path / "adapter"})


def test_what_is_no_adapter(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with pytest.raises(ModelError, match="is no folder"):
        open_adapter(tmp_path / "none", "a", spec, convert)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"holds no adapter_config\.json"):
        open_adapter(tmp_path / "empty", "a", spec, convert)
    write_adapter(tmp_path / "pickled", adapter_tensors(case_of("llama3"), seed=7))
    (tmp_path / "pickled" / "adapter_model.safetensors").rename(tmp_path / "pickled" / "adapter_model.bin")
    with pytest.raises(ModelError, match="is a pickle, which is never read"):
        open_adapter(tmp_path / "pickled", "a", spec, convert)


@pytest.mark.parametrize("kind", ["reference", "native"])
def test_an_adapter_that_is_not_loaded_fails_its_request_alone(kind: str, tmp_path: Path) -> None:
    case = case_of("llama3")
    write_folder(tmp_path / "base", case)
    loaded = Loaded(tmp_path / "base", case, kind)
    with pytest.raises(AssertionError, match="adapter 'a' is not loaded"):
        loaded.logits(case, (64,), "a")
    assert loaded.logits(case, (64,)).shape[0] == 64
