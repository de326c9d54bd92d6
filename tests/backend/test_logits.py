"""f32 logits against transformers (fixtures of tools/fixtures/make_logits.py), by both roads to a spec.

The Hugging Face road: rope in halves, weights as the checkpoint has them. The GGUF road: the metadata and the
permuted q and k rows that a converter writes, rope in interleaved pairs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spola.core.runner import RunnerConfig, Tensor
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    Head,
    Layer,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    RmsNorm,
    Rope,
    RopeScaling,
    YarnScaling,
)
from spola.spec.from_gguf import from_gguf
from spola.spec.kv import kv_groups
from spola.spec.manifest import TensorInfo, manifest
from support.blocks import encode
from support.drive import Driver, Job
from support.hf_weights import CASES, IDS, llama_weights

FOLDER = Path(__file__).parents[1] / "fixtures" / "logits"


def scaling(rope: dict[str, Any]) -> RopeScaling:
    original = rope.get("original_max_position_embeddings", 0)
    match rope["rope_type"]:
        case "linear":
            return LinearScaling(rope["factor"])
        case "llama3":
            return Llama3Scaling(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], original)
        case "yarn":
            return YarnScaling(rope["factor"], original)
        case "longrope":
            return LongRopeScaling(tuple(rope["short_factor"]), tuple(rope["long_factor"]), original)
        case _:
            return NoScaling()


def hf_spec(config: dict[str, Any]) -> DecoderSpec:
    norm = RmsNorm(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    d = config["head_dim"]
    attention = Attention(
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        k_dim=d,
        v_dim=d,
        scale=d**-0.5,
        positions=Rope(d, rope["rope_theta"], "half", scaling(rope)),
        qkv_bias=config["attention_bias"],
        out_bias=config["attention_bias"],
    )
    layer = Layer(
        attention, DenseMlp(config["intermediate_size"], "silu", bias=config["mlp_bias"]), norm, norm
    )
    return DecoderSpec(
        arch="llama",
        name="hf",
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        context=config["max_position_embeddings"],
        layers=(layer,) * config["num_hidden_layers"],
        final_norm=norm,
        head=Head(tied=config["tie_word_embeddings"]),
    )


def from_hf_names(infos: list[TensorInfo], weights: dict[str, np.ndarray]) -> list[Tensor]:
    out = []
    for info in infos:
        values = next(weights[name] for name in info.hf if name in weights)
        out.append(Tensor(info.name, "F32", values.shape, encode("F32", values)))
    return out


def permuted(rows: np.ndarray, d: int) -> np.ndarray:
    """What the converter does to q and k: rows of each head from halves to interleaved pairs."""
    return rows.reshape(-1, 2, d // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_factors(config: dict[str, Any]) -> np.ndarray:
    """Divisors of the frequencies, by wavelength, as files carry them in rope_freqs."""
    rope, d = config["rope_parameters"], config["head_dim"]
    old = rope["original_max_position_embeddings"]
    low, high = old / rope["low_freq_factor"], old / rope["high_freq_factor"]
    out = []
    for i in range(0, d, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / d)
        if wavelength < high:
            out.append(1.0)
        elif wavelength > low:
            out.append(rope["factor"])
        else:
            between = rope["high_freq_factor"] - rope["low_freq_factor"]
            smooth = (old / wavelength - rope["low_freq_factor"]) / between
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, np.float32)


def gguf_model(config: dict[str, Any], rope_keys: dict[str, Any], factors: np.ndarray | None):
    """The same weights as a GGUF file holds them: spec and tensors."""
    d = config["head_dim"]
    weights = {
        name: permuted(value, d) if "q_proj" in name or "k_proj" in name else value
        for name, value in llama_weights(config).items()
    }
    names = {name: info.gguf for info in manifest(hf_spec(config)) for name in info.hf if name in weights}
    table = {names[name]: ("F32", value.shape) for name, value in weights.items()}
    if factors is not None:
        table["rope_freqs.weight"] = ("F32", factors.shape)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": d,
        "llama.attention.value_length": d,
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.dimension_count": d,
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
    } | {f"llama.rope.scaling.{key}": value for key, value in rope_keys.items()}
    spec, warnings = from_gguf(metadata, table)
    assert warnings == []
    by_gguf = {names[name]: value for name, value in weights.items()}
    if factors is not None:
        by_gguf["rope_freqs.weight"] = factors
    tensors = [Tensor(i.name, "F32", i.shape, encode("F32", by_gguf[i.gguf])) for i in manifest(spec)]
    return spec, tensors


def check(bench, spec: DecoderSpec, tensors: list[Tensor], name: str) -> None:
    want = np.load(FOLDER / f"{name}.npy")
    groups = kv_groups(spec, "f32", "f32")
    config = RunnerConfig(
        kv_groups=groups, kv_blocks=(8,) * len(groups), max_step_tokens=128, max_seqs=4, max_model_len=128
    )
    runner = bench.runner()
    runner.load(spec, tensors, config)
    got = np.array(Driver(runner, config, spec.vocab).alone(Job(IDS, want="logits"), 33).logits)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("name", sorted(CASES))
def test_hugging_face_weights(bench, name: str) -> None:
    spec = hf_spec(CASES[name])
    check(bench, spec, from_hf_names(manifest(spec), llama_weights(CASES[name])), name)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("tied", {}),
        ("untied_biases", {"type": "none", "factor": 4.0}),
        ("wide_heads_mha", {}),
        ("one_kv_head", {}),
        ("linear", {"type": "linear", "factor": 4.0}),
        ("linear", {"factor": 4.0}),
        ("llama3", "tensor"),
        (
            "llama3",
            {
                "type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_context_length": 32,
            },
        ),
        ("yarn", {"type": "yarn", "factor": 4.0, "original_context_length": 32}),
    ],
)
def test_gguf_weights(bench, name: str, keys: Any) -> None:
    config = CASES[name]
    factors = llama3_factors(config) if keys == "tensor" else None
    spec, tensors = gguf_model(config, {} if factors is not None else keys, factors)
    check(bench, spec, tensors, name)


def test_the_cases_differ() -> None:
    """Each scaling changes the logits by far more than the tolerance, so that a wrong one is seen."""
    plain = np.load(FOLDER / "tied.npy")
    for name in ("linear", "llama3", "yarn", "longrope"):
        assert np.abs(np.load(FOLDER / f"{name}.npy") - plain).max() > 0.02 * np.abs(plain).max()
