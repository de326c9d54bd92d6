"""config.json -> DecoderSpec: what is obeyed, and that everything else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from spola.core.errors import ModelError
from spola.core.runner import KvGroup
from spola.spec.catalog import CATALOG
from spola.spec.cost import matmul_parameters, streamed_weight_bytes
from spola.spec.decoder import LongRopeScaling, MoeMlp, NoPositions, Rope, YarnScaling
from spola.spec.from_hf import from_hf
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest
from spola.spec.refused import why_refused
from support.families import read_case


def table(name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {key: ("F32", values.shape) for key, values in read_case(name).weights.items()}


def config(case: str, **changes: Any) -> dict[str, Any]:
    return {k: v for k, v in (read_case(case).config | changes).items() if v != "absent"}


def rope(case: str, **changes: Any) -> Rope:
    model = from_hf(config(case, **changes), table(case))
    positions = model.spec.layers[0].attention.positions
    assert isinstance(positions, Rope)
    return positions


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("llama", {"model_type": "mamba"}, "model_type 'mamba' is not supported: it has recurrent layers"),
        ("llama", {"model_type": "nope"}, "model_type 'nope' is not supported; supported are: baichuan, "),
        ("llama", {"model_type": "deepseek_v32"}, "model_type 'deepseek_v32' is not supported: its latent"),
        (
            "llama",
            {"model_type": "longcat_flash"},
            "that no backend computes yet; supported are: baichuan, ",
        ),
        ("llama", {"model_type": "qwen3_next"}, "'qwen3_next' is not supported: it mixes attention with"),
        ("llama", {"model_type": "rwkv"}, "'rwkv' is not supported: it has recurrent layers"),
        ("llama", {"model_type": "absent"}, "model_type is missing"),
        ("llama", {"hidden_size": "absent"}, "hidden_size is missing"),
        ("llama", {"hidden_size": 0}, "hidden_size must be between 1 and"),
        ("llama", {"hidden_size": True}, "hidden_size must be an integer, not True"),
        ("llama", {"hidden_size": 50}, "4 attention heads do not divide hidden_size 50"),
        ("llama", {"hidden_size": 48}, r"tensor model.embed_tokens.weight has shape \[96, 64\], expected"),
        ("llama", {"num_hidden_layers": 4}, r"tensor model\.layers\.3\.input_layernorm\.weight is missing"),
        ("llama", {"num_key_value_heads": 3}, "4 attention heads are no multiple of 3 key and value heads"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number, not '1e-5'"),
        ("baichuan", {"max_position_embeddings": "absent"}, "it has ALiBi instead of rope"),
        ("baichuan", {"vocab_size": 125696}, "it normalises the rows of its head"),
        ("minicpm", {"sparse_config": {"topk": 64}}, "sparse_config is {'topk': 64}, which is not supported"),
        ("minicpm", {"num_experts": 8}, "num_experts is 8, which is not supported for minicpm"),
        ("llama", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported; supported are: silu"),
        ("llama", {"attention_bias": 1}, "attention_bias must be true or false, not 1"),
        ("llama", {"attention_bias": True}, r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is missing"),
        ("llama", {"sliding_window": 16}, "sliding_window is 16, which is not supported for llama"),
        ("llama", {"num_local_experts": 8}, "num_local_experts is 8, which is not supported for llama"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, which is not"),
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "original_max_position_embeddings": 128},
            "dynamic rope scaling from original_max_position_embeddings on is not supported",
        ),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_parameters.factor must be a number, not None"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
        ("llama", {"rope_scaling": [1]}, r"rope_scaling must be an object, not \[1\]"),
        ("llama", {"partial_rotary_factor": 0.2}, "a rope of 3 of 16 dimensions is not possible"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quant_method 'gptq' is not"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types must be a list of 3 entries"),
        ("qwen3", {"layer_types": ["linear_attention"] * 3}, "layer_types has 'linear_attention'"),
        (
            "gemma2",
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 4},
            "sliding_window is not",
        ),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("phi3-longrope", {"original_max_position_embeddings": 0}, "must be between 1 and"),
        (
            "phi3-longrope",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "long_factor must be",
        ),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0, which is not supported for olmoe"),
        ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok must be between 1 and 6, not 7"),
        ("mixtral", {"num_local_experts": 7}, r"tensor model\.layers\.0\.block_sparse_moe\.gate\.weight has"),
        ("falcon", {"alibi": True}, "alibi is True, which is not supported for falcon"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm is True, which is not supported for stablelm"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm is True, which is not supported for phi"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1, 1]}, "no_rope_layers must hold 0"),
        ("granite", {"logits_scaling": 0}, "logits_scaling must not be 0"),
    ],
)
def test_refusals(case: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        from_hf(config(case, **changes), table(case))
    assert "\n" not in str(caught.value)


def test_warnings_name_what_has_no_effect() -> None:
    tensors = table("llama") | {"model.layers.0.odd.weight": ("F32", (3,))}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (6,))  # a buffer of old checkpoints
    model = from_hf(config("llama", quirk=3, use_cache=True, quiet=None), tensors)
    assert model.warnings == (
        "tensor model.layers.0.odd.weight is not used by this model",
        "config.json: quirk is not known and has no effect",
    )


def test_a_wrapped_text_model() -> None:
    inner = config("gemma3")
    outer = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 9}}
    tensors = {f"language_model.{k}": v for k, v in table("gemma3").items()}
    model = from_hf(outer, tensors)
    assert model.spec == from_hf(inner, table("gemma3")).spec
    assert model.sources["embedding.weight"][0].name == "language_model.model.embed_tokens.weight"
    assert model.warnings == ("only the text part of this model is loaded; images are not supported",)


def test_spellings_of_one_rope() -> None:
    old = rope("qwen2")
    assert old.scaling == YarnScaling(4.0, 32, attention_factor=pytest.approx(1.1386294))  # type: ignore[arg-type]
    values = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e6}
    assert rope("qwen2", rope_scaling="absent", rope_theta="absent", rope_parameters=values) == old
    longrope = rope("phi3-longrope")
    assert isinstance(longrope.scaling, LongRopeScaling)
    for kind in ("su", "yarn"):  # what older files of this family call it
        scaling = config("phi3-longrope")["rope_scaling"] | {"type": kind}
        assert rope("phi3-longrope", rope_scaling=scaling) == longrope


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "rope_theta must be above 1 for yarn"),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0],
                "long_factor": [1.0],
                "factor": 2.0,
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings must be above 1 for longrope",
        ),
    ],
)
def test_numbers_that_a_scaling_cannot_divide_by(values: dict, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        rope("qwen2", rope_scaling="absent", rope_theta="absent", rope_parameters=values)


def test_window_groups() -> None:
    groups = kv_groups(from_hf(config("gemma3"), table("gemma3")).spec)
    shape = {"heads": 2, "k_dim": 16, "v_dim": 16}
    assert groups == (
        KvGroup(layers=(0, 1, 2, 3, 4, 6), kind="window", window=20, **shape),
        KvGroup(layers=(5,), **shape),
    )
    smollm = from_hf(config("smollm3"), table("smollm3")).spec
    bare = [isinstance(layer.attention.positions, NoPositions) for layer in smollm.layers]
    assert bare == [False, False, False, True, False]
    assert len(kv_groups(smollm)) == 1


def test_cost_of_experts() -> None:
    spec = from_hf(config("mixtral"), table("mixtral")).spec
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MoeMlp)
    expert, attention, router = 3 * 64 * 96, 64 * (64 + 32 + 32 + 64), 6 * 64
    assert matmul_parameters(spec) == 3 * (2 * expert + attention + router)
    dtypes = {info.name: "F32" for info in manifest(spec)}
    one, all_ = streamed_weight_bytes(spec, dtypes, 1), streamed_weight_bytes(spec, dtypes, 3)
    assert all_ - one == 4 * (3 * 4 * expert + 2 * 64)
    assert streamed_weight_bytes(spec, dtypes, 4) - all_ == 4 * 64


def test_nothing_that_is_run_has_a_reason_not_to_be() -> None:
    assert not any(why_refused(kind) for entry in CATALOG for kind in (entry.model_type, entry.arch))
