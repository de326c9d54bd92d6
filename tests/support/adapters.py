"""Made LoRA adapters: PEFT folders for the tiny models of ``support.families``, and the weights
they amount to.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spola.core.dtype import BY_NAME
from spola.formats.output import NewTensor
from spola.formats.safetensors import write_safetensors
from support.blocks import encode
from support.families import Case
from support.tiny import Tiny

__all__ = ["MODULES", "adapter_tensors", "merged", "tiny_factors", "write_adapter"]

RANK, ALPHA = 4, 6.0

# Ends of module names that are linear layers, in any family.
MODULES = [
    "q_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "c_attn",
    "c_proj",
    "c_fc",
    "query_key_value",
    "self_attention.dense",
    "attention.dense",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "self_attn.dense",
    "attention.wqkv",
    "attention.wo",
    "feed_forward.w1",
    "feed_forward.w2",
    "feed_forward.w3",
    "fc1",
    "fc2",
]


def adapter_tensors(case: Case, seed: int, modules: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """f32 factors of every linear layer of ``case`` (no routed experts), under PEFT's names."""
    transposed = case.config["model_type"] == "gpt2"
    out: dict[str, np.ndarray] = {}
    for name, values in case.weights.items():
        module = name.removesuffix(".weight")
        if values.ndim != 2 or ".experts." in name or not module.endswith(tuple(modules or MODULES)):
            continue
        rng = np.random.RandomState(seed + zlib.crc32(module.encode()) % 100000)
        rows, columns = values.shape[::-1] if transposed else values.shape
        a = rng.standard_normal((RANK, columns)) * columns**-0.5
        b = rng.standard_normal((rows, RANK)) * 0.3
        out[f"base_model.model.{module}.lora_A.weight"] = a.astype(np.float32)
        out[f"base_model.model.{module}.lora_B.weight"] = b.astype(np.float32)
    return out


def write_adapter(
    folder: Path, tensors: Mapping[str, np.ndarray], dtype: str = "F32", **config: Any
) -> dict[str, Any]:
    """Write the folder and give its configuration; ``config`` overrides keys, None takes one out."""
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in tensors}
    values: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.05,
        "bias": "none",
        "target_modules": sorted(names),
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    values = {key: value for key, value in (values | config).items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(values))
    write_safetensors(
        folder / "adapter_model.safetensors",
        [NewTensor(name, BY_NAME[dtype], v.shape, encode(dtype, v)) for name, v in tensors.items()],
    )
    return values


def merged(case: Case, tensors: Mapping[str, np.ndarray], scale: float = ALPHA / RANK) -> Case:
    """The case whose weights hold what the adapter adds."""
    weights = dict(case.weights)
    for name, a in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.split(".lora_A.")[0].removeprefix("base_model.model.")
        delta = scale * (tensors[name.replace("lora_A", "lora_B")].astype(np.float64) @ a)
        base = weights[f"{module}.weight"]
        delta = delta.T if case.config["model_type"] == "gpt2" else delta
        weights[f"{module}.weight"] = (base + delta).astype(np.float32)
    return replace(case, weights=weights)


def tiny_factors(tiny: Tiny, seed: int) -> dict[str, np.ndarray]:
    """Factors of every matrix of the tiny llama, large enough to change its answers."""
    rng = np.random.RandomState(seed)
    q, kv = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    shapes = {
        "self_attn.q_proj": (q, tiny.hidden),
        "self_attn.k_proj": (kv, tiny.hidden),
        "self_attn.v_proj": (kv, tiny.hidden),
        "self_attn.o_proj": (tiny.hidden, q),
        "mlp.gate_proj": (tiny.ff, tiny.hidden),
        "mlp.up_proj": (tiny.ff, tiny.hidden),
        "mlp.down_proj": (tiny.hidden, tiny.ff),
    }
    out = {}
    for layer in range(tiny.layers):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            a, b = rng.standard_normal((4, columns)) * columns**-0.5, rng.standard_normal((rows, 4))
            out[f"{name}.lora_A.weight"] = a.astype(np.float32)
            out[f"{name}.lora_B.weight"] = b.astype(np.float32)
    return out
