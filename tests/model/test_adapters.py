"""LoRA adapters: equal to weights with the adapter added in, on every family; and refused when malformed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spola.core.errors import ModelError
from spola.load.adapter import open_adapter
from spola.spec.decoder import DecoderSpec
from support.adapters import adapter_tensors, merged, write_adapter
from support.families import write_folder
from support.family_gguf import write_case_gguf
from support.loaded import case_of, convert, differ, load, opened

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_an_adapter_is_what_it_adds_to_the_weights(name: str, kind: str, tmp_path: Path) -> None:
    case = case_of(name)
    tensors = adapter_tensors(case, seed=3)
    write_adapter(tmp_path / "adapter", tensors)
    write_folder(tmp_path / "base", case)
    write_folder(tmp_path / "merged", merged(case, tensors))
    wanted = load(tmp_path / "merged", case, kind).logits((64,))
    plain = load(tmp_path / "base", case, kind).logits((64,))
    loaded = load(tmp_path / "base", case, kind, adapters={"a": tmp_path / "adapter"})
    found = loaded.logits((64,), "a")
    assert differ(found, wanted) < 2e-4
    assert differ(plain, wanted) > 2e-2  # the adapter does something
    # A request without the adapter does not see it.
    assert np.array_equal(loaded.logits((64,)), plain)
    if loaded.runner.capabilities.invariant:
        assert np.array_equal(loaded.logits((1, 7, 30), "a"), found)


@pytest.mark.parametrize(
    "name", ["llama3", "phi3", "gpt_neox", "falcon", "granite", "smollm3", "qwen2", "deepseek_v3"]
)
def test_gguf_and_folder_take_the_same_adapter(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    write_adapter(tmp_path / "adapter", adapter_tensors(case, seed=4))
    write_folder(tmp_path / "base", case)
    write_case_gguf(tmp_path / "base.gguf", case)
    found = [
        load(path, case, "native", adapters={"a": tmp_path / "adapter"}).logits((64,), "a")
        for path in (tmp_path / "base", tmp_path / "base.gguf")
    ]
    assert differ(*found) < 1e-4


@pytest.mark.parametrize("dtype", ["Q4_0", "Q8_0"])
def test_native_is_the_quantized_reference(dtype: str, tmp_path: Path) -> None:
    case = case_of("gemma2")
    write_adapter(tmp_path / "adapter", adapter_tensors(case, seed=5), dtype="BF16")
    write_case_gguf(tmp_path / "base.gguf", case, dtype)
    native, reference = (
        load(tmp_path / "base.gguf", case, kind, adapters={"a": tmp_path / "adapter"}).logits((40,), "a")
        for kind in ("native", "reference-quantized")
    )
    assert differ(native, reference) < 1e-4


def test_half_floats_and_rank_stabilised_scale(tmp_path: Path) -> None:
    case = case_of("llama3")
    tensors = adapter_tensors(case, seed=6, modules=("q_proj", "down_proj"))
    write_folder(tmp_path / "base", case)
    write_adapter(tmp_path / "rs", tensors, dtype="F16", use_rslora=True)
    write_folder(tmp_path / "merged", merged(case, tensors, scale=6.0 / 2.0))
    wanted = load(tmp_path / "merged", case, "native").logits((64,))
    found = load(tmp_path / "base", case, "native", adapters={"rs": tmp_path / "rs"}).logits((64,), "rs")
    assert differ(found, wanted) < 5e-3


def spec_of(tmp_path: Path, name: str = "llama3") -> DecoderSpec:
    write_folder(tmp_path / "base", case_of(name))
    with opened(tmp_path / "base") as model:
        return model.spec


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
        load(tmp_path / "base", case_of("llama3"), kind, adapters={"a": tmp_path / "adapter"})


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
    loaded = load(tmp_path / "base", case, kind)
    with pytest.raises(AssertionError, match="adapter 'a' is not loaded"):
        loaded.logits((64,), "a")
    assert loaded.logits((64,)).shape[0] == 64
