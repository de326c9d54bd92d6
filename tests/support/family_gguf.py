"""The tiny models of ``support.families`` as GGUF files, laid out as the ecosystem's converter does.

Tensor names come from the ``gguf`` package's own table. What the converter changes on the way is repeated
here: q and k permuted for interleaved rope, Gemma's norms plus one, GPT-2's matrices transposed, merged q, k
and v put in order, experts stacked, rope divisors as tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from spola.core.dtype import BY_NAME
from spola.formats.gguf_write import NewTensor, write_gguf
from spola.spec.catalog import CATALOG
from support.blocks import encode
from support.families import Case

__all__ = ["ARCHS", "gguf_metadata", "write_case_gguf"]

# Model type -> architecture.
ARCHS = {entry.model_type: entry.arch for entry in CATALOG}
_PERMUTED = ("llama", "granite", "smollm3", "internlm2", "minicpm", "baichuan")
_LAYER_NORM = ("gpt2", "gptneox", "starcoder2", "falcon", "stablelm", "phi2", "command-r", "cohere2")


def gguf_metadata(case: Case) -> dict[str, Any]:
    """The keys of the model; no tokenizer."""
    c = case.text_config
    arch = ARCHS[c["model_type"]]
    hidden, heads = _get(c, "hidden_size", "n_embd"), _get(c, "num_attention_heads", "n_head")
    layers = _get(c, "num_hidden_layers", "n_layer")
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": _get(c, "max_position_embeddings", "n_positions"),
        "embedding_length": hidden,
        "feed_forward_length": _get(c, "intermediate_size", "n_inner") or 4 * hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": _kv_heads(c, heads),
        "vocab_size": c["vocab_size"],
    }
    eps = next(
        (c[k] for k in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon") if k in c),
        None,
    )
    if eps is None:
        eps = 1e-5 if arch in (*_LAYER_NORM, "olmo2", "olmoe", "phi3", "gpt-oss") else 1e-6
    keys[f"attention.layer_norm{'' if arch in _LAYER_NORM else '_rms'}_epsilon"] = eps
    head_dim = _head_dim(c, hidden, heads)
    if "head_dim" in c or arch.startswith("gemma"):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if arch != "gpt2":
        keys |= _rope_keys(c, head_dim)
    keys |= _arch_keys(arch, c)
    return {
        "general.architecture": arch,
        "general.name": case.name,
        **{f"{arch}.{key}": value for key, value in keys.items()},
    }


def write_case_gguf(
    path: Path, case: Case, dtype: str = "F32", extra: Mapping[str, Any] | None = None
) -> None:
    """Write the model; ``extra`` metadata go first, matrices are stored as ``dtype``."""
    metadata = gguf_metadata(case)
    tensors = []
    for name, values in sorted(_tensors(case).items()):
        plain = values.ndim < 2 or name.endswith(".bias") or name == "position_embd.weight"
        kind = "F32" if plain else dtype
        tensors.append(NewTensor(name, BY_NAME[kind], values.shape, encode(kind, values)))
    write_gguf(path, {**metadata, **(extra or {})}, tensors)


def _get(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if name in config), None)


def _kv_heads(c: Mapping[str, Any], heads: int) -> int:
    if c["model_type"] == "falcon":
        return (
            c.get("num_kv_heads", heads)
            if c["new_decoder_architecture"]
            else 1
            if c["multi_query"]
            else heads
        )
    return c.get("num_key_value_heads", heads)


def _head_dim(c: Mapping[str, Any], hidden: int, heads: int) -> int:
    return c.get("head_dim") or hidden // heads


def _rope(c: Mapping[str, Any]) -> dict[str, Any]:
    return dict(c.get("rope_scaling") or c.get("rope_parameters") or {})


def _rope_keys(c: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    rope = _rope(c)
    defaults = {"mixtral": 1e6, "gemma3_text": 1e6, "smollm3": 2e6, "olmo3": 5e5, "cohere": 5e5}
    partial = {"gpt_neox": 0.25, "stablelm": 0.25, "phi": 0.5, "glm": 0.5, "glm4": 0.5}.get(
        c["model_type"], 1.0
    )
    partial = c.get("partial_rotary_factor", c.get("rotary_pct", partial))
    base = rope.get(
        "rope_theta", _get(c, "rope_theta", "rotary_emb_base") or defaults.get(c["model_type"], 10000.0)
    )
    keys: dict[str, Any] = {"rope.dimension_count": int(head_dim * partial), "rope.freq_base": float(base)}
    match rope.get("rope_type", rope.get("type")):
        case "linear":
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
        case "yarn":
            keys |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": rope["factor"],
                "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            }
        case "longrope":
            original = _get(c | rope, "original_max_position_embeddings")
            factor = c["max_position_embeddings"] / original
            keys["rope.scaling.original_context_length"] = original
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
            if c["model_type"] == "minicpm":
                keys["rope.scaling.type"] = "longrope"
    return keys


def _arch_keys(arch: str, c: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    window = c.get("sliding_window")
    if window and arch in ("gemma2", "gemma3", "phi3", "llama", "starcoder2", "olmo2", "cohere2", "gpt-oss"):
        keys["attention.sliding_window"] = window
    match arch:
        case "gemma2":
            keys["attn_logit_softcapping"] = c["attn_logit_softcapping"]
            keys["final_logit_softcapping"] = c["final_logit_softcapping"]
        case "granite":
            keys["attention.scale"] = c["attention_multiplier"]
            keys["embedding_scale"] = c["embedding_multiplier"]
            keys["residual_scale"] = c["residual_multiplier"]
            keys["logit_scale"] = c["logits_scaling"]
        case "minicpm":
            keys["embedding_scale"] = float(c["scale_emb"])
            keys["residual_scale"] = c["scale_depth"] / c["num_hidden_layers"] ** 0.5
            keys["logit_scale"] = c["hidden_size"] / c["dim_model_base"]
        case "command-r" | "cohere2":
            keys["logit_scale"] = c["logit_scale"]
        case "gptneox" | "stablelm":
            default = arch == "gptneox"
            keys["use_parallel_residual"] = c.get("use_parallel_residual", default)
    if arch == "deepseek2":
        return _latent_keys(c)
    experts = _get(c, "num_local_experts", "num_experts")
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": c["num_experts_per_tok"]}
        if "moe_intermediate_size" in c:
            keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
        if "shared_expert_intermediate_size" in c:
            keys["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    return keys


def _latent_keys(c: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSeek's: sizes of the absorbed form, and routing."""
    v3, turned, rank = c["model_type"] == "deepseek_v3", c["qk_rope_head_dim"], c["kv_lora_rank"]
    keys: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": c["qk_nope_head_dim"] + turned,
        "attention.value_length_mla": c["v_head_dim"],
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": turned,
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_weights_scale": c["routed_scaling_factor"],
        "expert_weights_norm": c["norm_topk_prob"],
        "expert_gating_func": 2 if v3 else 1,
    }
    if c["n_group"] > 1:
        keys |= {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}
    if c["q_lora_rank"]:
        keys["attention.q_lora_rank"] = c["q_lora_rank"]
    if "mscale_all_dim" in _rope(c):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * _rope(c)["mscale_all_dim"]
    return keys


def _tensors(case: Case) -> dict[str, np.ndarray]:
    c = case.text_config
    arch = ARCHS[c["model_type"]]
    layers = _get(c, "num_hidden_layers", "n_layer")
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper().replace("-", "_")], layers)
    out: dict[str, np.ndarray] = {}
    prefix = "" if c is case.config else "language_model."
    own = {name.removeprefix(prefix): x for name, x in case.weights.items() if name.startswith(prefix)}
    weights = _oss_experts(own) if arch == "gpt-oss" else _stacked(own)
    weights = _taken_apart(weights, c) if arch == "internlm2" else weights
    weights = _unpacked(weights) if arch == "baichuan" else weights
    weights = _latent_apart(weights, c) if arch == "deepseek2" else weights
    for name, values in weights.items():
        new = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        new += ".weight" if new.endswith("sinks") else ""
        out[new] = np.ascontiguousarray(_changed(arch, c, name, values))
    return out | _rope_tensors(c)


def _changed(arch: str, c: Mapping[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    heads = _get(c, "num_attention_heads", "n_head")
    kv = _kv_heads(c, heads)
    if arch in _PERMUTED:
        for part, n in (("q_proj", heads), ("k_proj", kv)):
            if part in name:
                return _permuted(values, n)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1
    if arch == "gpt2" and any(p in name for p in ("c_attn.w", "c_proj.w", "c_fc.w")):
        return values.T
    if "query_key_value" in name:
        return _in_blocks(values, heads, kv)
    return values.reshape(-1) if name.endswith("shared_expert_gate.weight") else values


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """From halves to interleaved pairs."""
    pairs = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _in_blocks(values: np.ndarray, heads: int, kv: int) -> np.ndarray:
    """From (q, k, v) per KV head to all of q, all of k, all of v."""
    per = heads // kv
    grouped = values.reshape(kv, per + 2, -1, *values.shape[1:])
    parts = grouped[:, :per], grouped[:, per], grouped[:, per + 1]
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def _taken_apart(weights: Mapping[str, np.ndarray], c: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """InternLM2's wqkv as three matrices, as its GGUF files have them."""
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    dim = c["hidden_size"] // heads
    out: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        if ".wqkv." not in name:
            out[name] = values
            continue
        layer, kind = name.split("attention.wqkv.")
        parts = np.split(_in_blocks(values, heads, kv), [heads * dim, (heads + kv) * dim])
        out |= {f"{layer}self_attn.{w}_proj.{kind}": part for w, part in zip("qkv", parts, strict=True)}
    return out


def _unpacked(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Baichuan's W_pack as three matrices."""
    out: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        names = [name.replace("W_pack", f"{w}_proj") for w in "qkv"] if ".W_pack." in name else [name]
        out |= dict(zip(names, np.split(values, len(names)), strict=True))
    return out


def _latent_apart(weights: Mapping[str, np.ndarray], c: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """DeepSeek's kv_b as the keys of each head, transposed, and its values."""
    out: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        if ".kv_b_proj." in name:
            heads = values.reshape(c["num_attention_heads"], -1, values.shape[1])
            k, v = np.split(heads, [c["qk_nope_head_dim"]], axis=1)
            out[name.replace("kv_b", "k_b")] = k.swapaxes(1, 2)
            out[name.replace("kv_b", "v_b")] = v
        else:
            out[name.replace("e_score_correction_bias", "e_score_correction.bias")] = values
    return out


def _oss_experts(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """gpt-oss stores its experts [in, out], with gate and up by turns."""
    out: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        head, _, kind = name.partition("_proj_bias") if name.endswith("_bias") else name.partition("_proj")
        if ".experts." not in name:
            out[name] = values
            continue
        suffix = "bias" if name.endswith("_bias") else "weight"
        turned = values if suffix == "bias" else values.swapaxes(1, 2)
        if head.endswith("gate_up"):
            stem = head.removesuffix("gate_up")
            out[f"{stem}gate_proj.{suffix}"] = turned[:, ::2]
            out[f"{stem}up_proj.{suffix}"] = turned[:, 1::2]
        else:
            out[f"{head}_proj.{suffix}"] = turned
        assert kind == ""
    return out


def _stacked(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts joined, under the names that the converter looks up."""
    out: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in weights.items():
        if ".experts." not in name:
            out[name] = values
            continue
        head, tail = name.split(".experts.")
        number, part = tail.split(".", 1)
        head = (
            head.replace("model.", "").replace("block_sparse_moe", "feed_forward")
            if part.startswith("w")
            else head
        )
        stacks.setdefault(f"{head}.experts.{part}", {})[int(number)] = values
    return out | {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in stacks.items()}


def _rope_tensors(c: Mapping[str, Any]) -> dict[str, np.ndarray]:
    rope = _rope(c)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
            for which in ("long", "short")
        }
    if kind != "llama3":
        return {}
    head_dim = _head_dim(c, c["hidden_size"], c["num_attention_heads"])
    frequencies = c["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    return {"rope_freqs.weight": np.array([_llama3(rope, f) for f in frequencies], np.float32)}


def _llama3(rope: Mapping[str, Any], frequency: float) -> float:
    """The divisor of one frequency, as the converter computes it."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, wavelength = rope["original_max_position_embeddings"], 2 * math.pi / frequency
    if wavelength < original / high:
        return 1.0
    if wavelength > original / low:
        return float(rope["factor"])
    smooth = (original / wavelength - low) / (high - low)
    return float(1 / ((1 - smooth) / rope["factor"] + smooth))
