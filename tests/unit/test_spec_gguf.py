"""GGUF metadata -> DecoderSpec: what is read, and that everything wrong is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spola.core.errors import ModelError
from spola.spec.decoder import LinearScaling, Llama3Scaling, NoScaling, RmsNorm, Rope, YarnScaling
from spola.spec.from_gguf import from_gguf
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest

HIDDEN, FF, VOCAB, HEADS, KV, DIM = 32, 48, 40, 4, 2, 8


def metadata(**changes: Any) -> dict[str, Any]:
    """Keys of a small llama; names in ``changes`` have __ for a dot, None removes the key."""
    out: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FF,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": DIM,
        "tokenizer.ggml.tokens": [str(i) for i in range(VOCAB)],
    }
    for name, value in changes.items():
        key = name.replace("__", ".")
        key = key if key.startswith(("general.", "tokenizer.")) else f"llama.{key}"
        if value is None:
            del out[key]
        else:
            out[key] = value
    return out


def tensors(**changes: tuple[int, ...] | None) -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HEADS * DIM, HIDDEN),
            f"blk.{i}.attn_k.weight": (KV * DIM, HIDDEN),
            f"blk.{i}.attn_v.weight": (KV * DIM, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * DIM),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (FF, HIDDEN),
            f"blk.{i}.ffn_up.weight": (FF, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, FF),
        }
    shapes["output_norm.weight"] = (HIDDEN,)
    for name, shape in changes.items():
        key = name.replace("__", ".")
        if shape is None:
            del shapes[key]
        else:
            shapes[key] = shape
    return {name: ("F32", shape) for name, shape in shapes.items()}


def rope_of(meta: dict[str, Any], table: dict[str, tuple[str, tuple[int, ...]]] | None = None) -> Rope:
    spec, _ = from_gguf(meta, table or tensors())
    rope = spec.layers[0].attention.positions
    assert isinstance(rope, Rope)
    return rope


def test_a_plain_file() -> None:
    spec, warnings = from_gguf(metadata(), tensors())
    assert warnings == []
    assert (spec.arch, spec.name, spec.vocab, spec.hidden, spec.context) == ("llama", "tiny", 40, 32, 128)
    assert spec.head.tied
    attention = spec.layers[1].attention
    assert (attention.heads, attention.kv_heads, attention.k_dim, attention.v_dim) == (4, 2, 8, 8)
    assert attention.scale == pytest.approx(1 / math.sqrt(8))
    assert (attention.qkv_bias, attention.out_bias) == (False, False)
    assert spec.layers[0].pre_attention_norm == RmsNorm(1e-5)
    assert rope_of(metadata()) == Rope(DIM, 10000.0, "interleaved")
    assert [info.gguf for info in manifest(spec)] == [
        "token_embd.weight",
        *(f"blk.{i}.{name}.weight" for i in range(2) for name in _LAYER),
        "output_norm.weight",
    ]


def test_untied_head_and_biases() -> None:
    extra = {
        "output__weight": (VOCAB, HIDDEN),
        "blk__1__attn_q__bias": (HEADS * DIM,),
        "blk__1__attn_k__bias": (KV * DIM,),
        "blk__1__attn_v__bias": (KV * DIM,),
        "blk__0__attn_output__bias": (HIDDEN,),
    }
    spec, warnings = from_gguf(metadata(), tensors(**extra))
    assert warnings == []
    assert not spec.head.tied
    assert [layer.attention.qkv_bias for layer in spec.layers] == [False, True]
    assert [layer.attention.out_bias for layer in spec.layers] == [True, False]
    assert manifest(spec)[-1].name == "head.weight"
    with pytest.raises(ModelError, match=r"blk\.1\.attn_k\.bias is missing"):
        from_gguf(metadata(), tensors(**{k: v for k, v in extra.items() if "attn_k" not in k}))


def test_defaults_of_keys_left_out() -> None:
    table = tensors(**{f"blk__{i}__attn_{x}__weight": (32, HIDDEN) for i in range(2) for x in "kv"})
    spec, _ = from_gguf(metadata(attention__head_count_kv=None, rope__dimension_count=None), table)
    assert spec.layers[0].attention.kv_heads == HEADS
    assert spec.layers[0].attention.positions == Rope(DIM, 10000.0, "interleaved")


def test_kv_heads_per_layer_make_kv_groups() -> None:
    table = tensors(**{f"blk__1__attn_{x}__weight": (32, HIDDEN) for x in "kv"})
    spec, _ = from_gguf(metadata(attention__head_count_kv=[2, 4]), table)
    groups = kv_groups(spec, "f16", "f32")
    assert [(g.layers, g.heads, g.bytes_per_token) for g in groups] == [((0,), 2, 96), ((1,), 4, 192)]
    window, _ = from_gguf(metadata(attention__sliding_window=16), tensors())
    assert [(g.kind, g.window, g.layers) for g in kv_groups(window)] == [("window", 16, (0, 1))]


def test_head_dimensions_that_differ() -> None:
    changes = {}
    for i in range(2):
        changes |= {
            f"blk__{i}__attn_q__weight": (HEADS * 6, HIDDEN),
            f"blk__{i}__attn_k__weight": (KV * 6, HIDDEN),
            f"blk__{i}__attn_v__weight": (KV * 10, HIDDEN),
            f"blk__{i}__attn_output__weight": (HIDDEN, HEADS * 10),
        }
    keys = {"attention__key_length": 6, "attention__value_length": 10, "rope__dimension_count": 4}
    spec, _ = from_gguf(metadata(**keys), tensors(**changes))
    attention = spec.layers[0].attention
    assert (attention.k_dim, attention.v_dim) == (6, 10)
    assert attention.positions == Rope(4, 10000.0, "interleaved")


_LAYER = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)

SCALED = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({}, NoScaling()),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 8.0}, NoScaling()),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}, LinearScaling(8.0)),
        ({"rope__scaling__factor": 0.0}, NoScaling()),
        ({"rope__scaling__factor": 2}, LinearScaling(2.0)),
        ({"rope__scale_linear": 3.0}, LinearScaling(3.0)),
        (
            SCALED,
            YarnScaling(4.0, 128, attention_factor=pytest.approx(0.1 * math.log(4) + 1)),  # type: ignore[arg-type]
        ),
        (
            SCALED
            | {
                "rope__scaling__original_context_length": 64,
                "rope__scaling__attn_factor": 0.5,
                "rope__scaling__yarn_beta_fast": 16.0,
                "rope__scaling__yarn_beta_slow": 2.0,
                "rope__scaling__yarn_ext_factor": 0.5,
                "rope__scaling__yarn_attn_factor": 3.0,
            },
            YarnScaling(
                4.0,
                64,
                16.0,
                2.0,
                0.5,
                pytest.approx(1.5 * (0.1 * math.log(4) + 1)),  # type: ignore[arg-type]
            ),
        ),
        (
            SCALED | {"rope__scaling__yarn_log_multiplier": 0.1},
            YarnScaling(4.0, 128, attention_factor=pytest.approx(1.0)),  # type: ignore[arg-type]
        ),
        (
            {"rope__scaling__type": "llama3", "rope__scaling__factor": 8.0},
            Llama3Scaling(8.0, 1.0, 4.0, 128),
        ),
    ],
)
def test_rope_scalings(keys: dict[str, Any], scaling: object) -> None:
    assert rope_of(metadata(**keys)).scaling == scaling


def test_rope_factors_tensor() -> None:
    rope = rope_of(metadata(), tensors(rope_freqs__weight=(DIM // 2,)))
    assert rope.factors == "rope_freqs.weight"
    assert rope.scaling == NoScaling()
    both = metadata(rope__scaling__type="llama3", rope__scaling__factor=8.0)
    assert rope_of(both, tensors(rope_freqs__weight=(DIM // 2,))).scaling == NoScaling()
    with pytest.raises(ModelError, match=r"rope_freqs\.weight has shape \[8\], expected \[4\]"):
        from_gguf(metadata(), tensors(rope_freqs__weight=(DIM,)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"general__architecture": "nope"},
            "architecture 'nope' is not supported; supported are: baichuan, ",
        ),
        ({"general__architecture": "mamba"}, "'mamba' is not supported: it has recurrent layers, "),
        (
            {"general__architecture": "minicpm3"},
            "'minicpm3' is not supported: its files hold keys",
        ),
        ({"general__architecture": 7}, "general.architecture is missing or not a string"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 0}, "llama.block_count must be between 1 and"),
        ({"block_count": 2**63}, "llama.block_count must be between 1 and"),
        ({"block_count": 3}, r"blk\.2\.attn_norm\.weight is missing"),
        ({"block_count": "2"}, "llama.block_count must be an integer, not '2'"),
        ({"block_count": True}, "llama.block_count must be an integer, not True"),
        ({"context_length": -1}, "llama.context_length must be between"),
        ({"embedding_length": 31}, "does not divide embedding_length 31"),
        ({"embedding_length": 64}, r"token_embd\.weight has shape \[40, 32\]"),
        ({"attention__head_count": 0}, "llama.attention.head_count must be between 1 and"),
        ({"attention__head_count": -4}, "llama.attention.head_count must be between 1 and"),
        ({"attention__head_count": 8}, "rope.dimension_count must be between 2 and 4, not 8"),
        ({"attention__head_count": 3}, "head_count is 3, which does not divide"),
        ({"attention__head_count_kv": 0}, "llama.attention.head_count_kv must be between 1 and"),
        ({"attention__head_count_kv": 3}, "no multiple of head_count_kv 3"),
        (
            {"attention__head_count_kv": 4},
            r"blk\.0\.attn_k\.weight has shape \[16, 32\], expected \[32, 32\]",
        ),
        ({"attention__head_count_kv": [2]}, "has 1 entries, but the model 2 layers"),
        ({"attention__head_count_kv": [2, 0]}, "head_count_kv must be between 1 and"),
        ({"attention__head_count_kv": [2, "x"]}, "head_count_kv must be an integer"),
        ({"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon must be between"),
        ({"attention__layer_norm_rms_epsilon": "1e-5"}, "layer_norm_rms_epsilon must be a number"),
        ({"feed_forward_length": 64}, r"blk\.0\.ffn_gate\.weight has shape \[48, 32\], expected \[64, 32\]"),
        ({"rope__dimension_count": 7}, "rope.dimension_count must be even"),
        ({"rope__freq_base": 0.0}, "rope.freq_base must be between"),
        ({"rope__scaling__type": "magic"}, "rope.scaling.type is 'magic'; supported are: none, linear, yarn"),
        ({"rope__scaling__type": "yarn"}, "rope.scaling.factor must be at least 1 for yarn"),
        ({"rope__scaling__type": "llama3"}, "rope.scaling.factor must be at least 1 for llama3"),
        ({"rope__scaling__attn_factor": 2.0}, "rope.scaling.attn_factor is 2, which only yarn"),
        (SCALED | {"rope__freq_base": 1.0}, "rope.freq_base must be above 1 for yarn"),
        (SCALED | {"rope__scaling__yarn_beta_slow": 64.0}, "yarn_beta_slow must be below yarn_beta_fast"),
        ({"expert_count": 8}, r"tensor blk\.0\.ffn_gate_inp\.weight is missing"),
        ({"expert_group_count": 4}, "llama.expert_group_count is 4; only 0 is supported"),
        ({"attention__causal": False}, "llama.attention.causal is False; only True"),
        ({"logit_scale": 0.5}, "llama.logit_scale is 0.5"),
        ({"vocab_size": 41}, r"llama.vocab_size is 41, but token_embd\.weight has 40 rows"),
        (
            {"tokenizer__ggml__tokens": ["x"] * 41},
            r"tokens has 41 entries, but token_embd.weight has only 40",
        ),
        ({"general__name": 3}, "general.name must be a string"),
    ],
)
def test_bad_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        from_gguf(metadata(**keys), tensors())
    assert "\n" not in str(caught.value)


def test_padded_vocabulary_and_extras() -> None:
    meta = metadata(tokenizer__ggml__tokens=["a"], vocab_size=39, quirk=1)
    spec, warnings = from_gguf(meta, tensors(blk__0__odd__weight=(3,)))
    assert spec.vocab == VOCAB
    assert warnings == [
        "tensor blk.0.odd.weight is not used by this model",
        "key llama.quirk is not known and has no effect",
    ]


@pytest.mark.parametrize("name", sorted(tensors()))
def test_every_tensor_is_needed_and_checked(name: str) -> None:
    table = tensors()
    kind, shape = table.pop(name)
    if name != "token_embd.weight":
        with pytest.raises(ModelError, match=f"tensor {name} is missing"):
            from_gguf(metadata(), table)
    table[name] = (kind, (*shape, 1))
    with pytest.raises(ModelError, match=f"tensor {name} has shape"):
        from_gguf(metadata(), table)
    table[name] = (kind, shape[::-1] if len(shape) == 2 and shape[0] != shape[1] else (*shape[:-1], 7))
    with pytest.raises(ModelError, match=f"tensor {name} has shape"):
        from_gguf(metadata(), table)
