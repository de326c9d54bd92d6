"""Small llama models in the terms of Hugging Face: weights from a seed, made again wherever needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["CASES", "IDS", "llama_weights"]

_BASE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 90,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0} | more}


# Name -> what differs from the base; all of it is the configuration of LlamaForCausalLM.
CASES: dict[str, dict[str, Any]] = {
    name: _BASE | changes
    for name, changes in {
        "tied": {},
        "untied_biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
        "wide_heads_mha": {"num_key_value_heads": 4, "head_dim": 20},
        "one_kv_head": {"num_key_value_heads": 1, "rms_norm_eps": 1e-3},
        "linear": _rope("linear", factor=4.0),
        "llama3": _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        "yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=32),
        "longrope": _rope(
            "longrope",
            factor=4.0,
            original_max_position_embeddings=32,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            long_factor=[1.0, 2.0, 4.0, 5.0, 7.0, 9.0],
        ),
    }.items()
}

IDS: list[int] = np.random.RandomState(5).randint(0, _BASE["vocab_size"], 80).tolist()


def llama_weights(config: Mapping[str, Any], seed: int = 7) -> dict[str, np.ndarray]:
    """f32 weights under their Hugging Face names. RandomState's stream is fixed by NumPy for good."""
    rng = np.random.RandomState(seed)
    hidden, ff, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    out: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int, bias: bool, std: float | None = None) -> None:
        values = rng.standard_normal((rows, cols)) * (std or cols**-0.5)
        out[f"{name}.weight"] = values.astype(np.float32)
        if bias:
            out[f"{name}.bias"] = (0.3 * rng.standard_normal(rows)).astype(np.float32)

    def norm(name: str) -> None:
        out[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(hidden)).astype(np.float32)

    matrix("model.embed_tokens", config["vocab_size"], hidden, False, 0.5)
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}"
        norm(f"{name}.input_layernorm")
        matrix(f"{name}.self_attn.q_proj", heads * d, hidden, config["attention_bias"])
        matrix(f"{name}.self_attn.k_proj", kv * d, hidden, config["attention_bias"])
        matrix(f"{name}.self_attn.v_proj", kv * d, hidden, config["attention_bias"])
        matrix(f"{name}.self_attn.o_proj", hidden, heads * d, config["attention_bias"])
        norm(f"{name}.post_attention_layernorm")
        matrix(f"{name}.mlp.gate_proj", ff, hidden, config["mlp_bias"])
        matrix(f"{name}.mlp.up_proj", ff, hidden, config["mlp_bias"])
        matrix(f"{name}.mlp.down_proj", hidden, ff, config["mlp_bias"])
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        matrix("lm_head", config["vocab_size"], hidden, False, 0.5)
    return out
