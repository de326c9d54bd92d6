"""Costs of a model, against counting one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spola.core.dtype import BY_NAME, nbytes
from spola.core.errors import ConfigError, ModelError
from spola.spec import cost
from spola.spec.decoder import (
    Attention,
    DecoderSpec,
    DenseMlp,
    Head,
    Layer,
    LayerNorm,
    LearnedPositions,
    MoeMlp,
    NoPositions,
    RmsNorm,
    Router,
)
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest

NORM = RmsNorm(1e-5)
ATTENTION = Attention(9, 3, 64, 64, 0.125, NoPositions())
MLP = DenseMlp(1536, "silu")
LAYER = Layer(ATTENTION, MLP, NORM, NORM)
# SmolLM2-135M.
SMOL = DecoderSpec("llama", "smol", 49152, 576, 8192, (LAYER,) * 30, NORM, Head(tied=True))


def types(spec: DecoderSpec, matrices: str = "Q4_1", embedding: str = "Q8_0") -> dict[str, str]:
    kinds = {"embedding": embedding, "head": embedding, "linear": matrices}
    return {info.name: kinds.get(info.role, "F32") for info in manifest(spec)}


def test_bytes_of_the_embedded_model() -> None:
    """134,515,008 parameters, as published; the file's tensors take 96.6 MB."""
    parameters = cost.weight_bytes(SMOL, types(SMOL, "F32", "F32")) // 4
    assert parameters == 134_515_008
    assert cost.weight_bytes(SMOL, types(SMOL)) == 96_576_768
    assert cost.streamed_weight_bytes(SMOL, types(SMOL)) == 96_576_768
    assert cost.matmul_parameters(SMOL) == 134_515_008 - 49152 * 576 - 61 * 576


def test_an_untied_embedding_is_read_by_the_row() -> None:
    spec = replace(SMOL, head=Head(tied=False))
    row = nbytes(BY_NAME["Q8_0"], 576)
    assert cost.weight_bytes(spec, types(spec)) == 96_576_768 + 49152 * row
    assert cost.streamed_weight_bytes(spec, types(spec), rows=3) == 96_576_768 + 3 * row


def test_kv_bytes() -> None:
    """11,520 elements per token: the figures of the published table for SmolLM2-135M."""
    assert cost.kv_bytes_per_token(kv_groups(SMOL)) == 23_040
    assert cost.kv_bytes_per_token(kv_groups(SMOL, "f32", "f32")) == 46_080
    assert cost.kv_bytes_per_token(kv_groups(SMOL, "f32", "f16")) == 34_560
    # One byte, and an f16 scale for each 32 dimensions, also where the last of these are fewer.
    assert cost.kv_bytes_per_token(kv_groups(SMOL, "int8", "int8")) == 180 * (64 + 4)
    assert cost.kv_bytes_per_token(kv_groups(SMOL, "int8", "f16")) == 90 * (68 + 128)
    odd = replace(SMOL, layers=(replace(LAYER, attention=replace(ATTENTION, k_dim=33, v_dim=31)),))
    assert cost.kv_bytes_per_token(kv_groups(odd, "int8", "int8")) == 3 * (33 + 4 + 31 + 2)
    with pytest.raises(ConfigError, match="KV type 'q3'"):
        kv_groups(SMOL, "q3")


def test_windows_bound_what_is_read() -> None:
    windowed = Layer(replace(ATTENTION, window=100), MLP, NORM, NORM)
    spec = replace(SMOL, layers=(LAYER, windowed, windowed))
    groups = kv_groups(spec)
    assert [g.layers for g in groups] == [(0,), (1, 2)]
    assert cost.kv_read_bytes(groups, 50) == 3 * 768 * 50
    assert cost.kv_read_bytes(groups, 250) == 768 * 250 + 2 * 768 * 100
    total = cost.decode_bytes(spec, types(spec), groups, [50, 250])
    assert total == cost.weight_bytes(spec, types(spec)) + 768 * (3 * 50 + 250 + 200)


@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 7), (5, 4), (0, 20), (9, 8), (30, 3)])
@pytest.mark.parametrize("window", [None, 10])
def test_flops_count_each_pair_that_is_seen(start: int, tokens: int, window: int | None) -> None:
    attention = Attention(4, 2, 6, 10, 1.0, NoPositions(), window=window)
    spec = DecoderSpec(
        "x", "x", 11, 8, 99, (Layer(attention, DenseMlp(12, "relu"), NORM, NORM),) * 2, NORM, Head(True)
    )
    pairs = sum(min(p + 1, window or p + 1) for p in range(start, start + tokens))
    qkv, rest = 8 * (24 + 12 + 20), 40 * 8 + 3 * 8 * 12
    whole = 2 * (qkv + rest) * tokens + 2 * 4 * (6 + 10) * pairs
    # Of the last layer only the rows with logits need more than K and V.
    heads = min(3, tokens)
    seen = sum(min(p + 1, window or p + 1) for p in range(start + tokens - heads, start + tokens))
    last = 2 * qkv * tokens + 2 * rest * heads + 2 * 4 * (6 + 10) * seen
    assert cost.prefill_flops(spec, tokens, start, head_rows=heads) == whole + last + 2 * 8 * 11 * heads
    assert cost.attention_flops(spec, tokens, start) == 2 * 2 * 4 * (6 + 10) * pairs
    assert cost.decode_flops(spec, [start + 1]) == cost.prefill_flops(spec, 1, start)


def test_the_manifest_names_every_natural_part() -> None:
    layer = Layer(
        Attention(
            4,
            2,
            16,
            16,
            0.25,
            NoPositions(),
            sinks=True,
            q_norm=NORM,
            k_norm=NORM,
            qkv_bias=True,
            out_bias=True,
        ),
        DenseMlp(24, "gelu", gated=False, bias=True),
        LayerNorm(1e-5),
        LayerNorm(1e-5, bias=False),
        post_attention_norm=NORM,
        post_mlp_norm=NORM,
    )
    spec = DecoderSpec(
        "x",
        "x",
        10,
        8,
        32,
        (layer,),
        LayerNorm(1e-5),
        Head(False, bias=True),
        1.0,
        NORM,
        LearnedPositions(32, 2),
    )
    infos = {info.name: info for info in manifest(spec)}
    assert list(infos) == [
        "embedding.weight",
        "positions.weight",
        "embedding_norm.weight",
        "layers.0.pre_attention_norm.weight",
        "layers.0.pre_attention_norm.bias",
        *(f"layers.0.attention.{x}.{kind}" for x in "qkv" for kind in ("weight", "bias")),
        "layers.0.attention.q_norm.weight",
        "layers.0.attention.k_norm.weight",
        "layers.0.attention.sinks",
        "layers.0.attention.o.weight",
        "layers.0.attention.o.bias",
        "layers.0.post_attention_norm.weight",
        "layers.0.pre_mlp_norm.weight",
        "layers.0.mlp.up.weight",
        "layers.0.mlp.up.bias",
        "layers.0.mlp.down.weight",
        "layers.0.mlp.down.bias",
        "layers.0.post_mlp_norm.weight",
        "final_norm.weight",
        "final_norm.bias",
        "head.weight",
        "head.bias",
    ]
    assert infos["positions.weight"].shape == (34, 8)
    assert infos["layers.0.attention.q_norm.weight"].shape == (16,)
    assert infos["layers.0.pre_mlp_norm.weight"].hf == ("model.layers.0.pre_feedforward_layernorm.weight",)
    shards = {name: info.shard for name, info in infos.items()}
    assert shards["layers.0.attention.q.bias"] == "rows"
    assert shards["layers.0.attention.o.weight"] == "columns"
    assert shards["layers.0.attention.o.bias"] is None
    assert shards["layers.0.mlp.down.weight"] == "columns"
    assert len({info.gguf for info in infos.values()}) == len(infos)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            replace(LAYER, mlp=MoeMlp(4, 2, replace(MLP, gated=False), Router("softmax", True))),
            "layer 1: experts without gates are not supported yet",
        ),
    ],
)
def test_parts_without_names_are_refused_by_name(layer: Layer, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        manifest(replace(SMOL, layers=(LAYER, layer)))
