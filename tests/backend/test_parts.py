"""Every part of a spec that a backend claims, against a dense rendering in f64; others refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spola.core.errors import ModelError
from spola.core.runner import RunnerConfig, Tensor
from spola.spec.decoder import (
    Alibi,
    Attention,
    DecoderSpec,
    DenseMlp,
    Head,
    Layer,
    LayerNorm,
    LearnedPositions,
    NoPositions,
    RmsNorm,
    Rope,
)
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest
from support.blocks import encode
from support.dense import dense_logits
from support.drive import Driver, Job

V, D = 70, 32
RMS, LN = RmsNorm(1e-5), LayerNorm(1e-5)
ROPE = Rope(8, 100.0, "half")
ATTENTION = Attention(4, 2, 8, 8, 8**-0.5, ROPE)
MLP = DenseMlp(48, "silu")
LAYER = Layer(ATTENTION, MLP, RMS, RMS)
SPEC = DecoderSpec("x", "x", V, D, 128, (LAYER, LAYER), RMS, Head(True))
IDS = np.random.default_rng(4).integers(0, V, 75).tolist()


def layers(*parts: Layer) -> DecoderSpec:
    return replace(SPEC, layers=parts)


GPT2 = DecoderSpec(
    "x",
    "gpt2",
    V,
    D,
    128,
    (
        Layer(
            replace(ATTENTION, kv_heads=4, positions=NoPositions(), qkv_bias=True, out_bias=True),
            DenseMlp(48, "gelu_tanh", gated=False, bias=True),
            LN,
            LN,
        ),
    )
    * 2,
    LN,
    Head(True, bias=True),
    embedding_norm=LN,
    positions=LearnedPositions(100, 2),
)
GEMMA_NORM = RmsNorm(1e-6, offset=1.0)
GEMMA_LAYER = Layer(
    replace(ATTENTION, window=20, softcap=3.0, q_norm=GEMMA_NORM, k_norm=GEMMA_NORM, scale=0.4),
    DenseMlp(48, "gelu_tanh"),
    GEMMA_NORM,
    GEMMA_NORM,
    GEMMA_NORM,
    GEMMA_NORM,
)
FULL_LAYER = replace(
    GEMMA_LAYER, attention=replace(GEMMA_LAYER.attention, window=None, positions=Rope(8, 1e4, "half"))
)
CASES = {
    "llama": SPEC,
    "interleaved": layers(
        replace(LAYER, attention=replace(ATTENTION, positions=Rope(8, 50.0, "interleaved")))
    ),
    "gpt2": GPT2,
    "gemma": replace(
        layers(GEMMA_LAYER, FULL_LAYER, GEMMA_LAYER),
        embedding_scale=D**0.5,
        final_norm=GEMMA_NORM,
        head=Head(True, softcap=5.0),
    ),
    "window_alone": layers(replace(LAYER, attention=replace(ATTENTION, window=33))),
    "sinks": layers(
        replace(LAYER, attention=replace(ATTENTION, sinks=True)),
        replace(LAYER, attention=replace(ATTENTION, sinks=True, window=9)),
    ),
    "parallel_shared_norm": layers(
        Layer(
            replace(ATTENTION, positions=Rope(4, 100.0, "half")),
            DenseMlp(48, "relu2", gated=False),
            LN,
            None,
            residual="parallel",
        )
    ),
    "parallel_two_norms": replace(
        layers(
            Layer(
                replace(ATTENTION, q_norm=RMS, k_norm=RMS, qk_norm_span="whole", positions=NoPositions()),
                DenseMlp(48, "relu"),
                LayerNorm(1e-5, bias=False),
                LayerNorm(1e-5, weight=False, bias=False),
                residual="parallel",
                residual_scale=0.22,
            )
        ),
        head=Head(False, scale=0.25),
    ),
    "post_norms_only": layers(Layer(ATTENTION, MLP, None, None, RMS, RMS, residual_scale=0.5)),
    "unequal_dims": layers(replace(LAYER, attention=replace(ATTENTION, v_dim=12, kv_heads=1))),
    "kv_heads_differ": layers(LAYER, replace(LAYER, attention=replace(ATTENTION, kv_heads=4))),
    "no_final_norm": replace(SPEC, final_norm=None),
    "gelu": layers(replace(LAYER, mlp=DenseMlp(48, "gelu"))),
}


def weights(spec: DecoderSpec) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    out = {}
    for info in manifest(spec):
        values = rng.standard_normal(info.shape)
        match info.role:
            case "norm" if info.name.endswith("weight"):
                values = 1 + 0.2 * values
            case "linear":
                values *= info.shape[1] ** -0.5
            case "bias" | "norm":
                values *= 0.3
        out[info.name] = values.astype(np.float32)
    return out


def run(bench, spec: DecoderSpec) -> np.ndarray:
    arrays = weights(spec)
    tensors = [Tensor(n, "F32", a.shape, encode("F32", a)) for n, a in arrays.items()]
    groups = kv_groups(spec, "f32", "f32")
    config = RunnerConfig(
        kv_groups=groups, kv_blocks=(9,) * len(groups), max_step_tokens=128, max_seqs=4, max_model_len=96
    )
    runner = bench.runner()
    runner.load(spec, tensors, config)
    return np.array(Driver(runner, config, V).alone(Job(IDS, want="logits"), 13).logits)


@pytest.mark.parametrize("name", CASES)
def test_a_part_means_what_it_says(bench, name: str) -> None:
    spec = CASES[name]
    got = run(bench, spec)
    want = dense_logits(spec, weights(spec), IDS)
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (replace(LAYER, attention=replace(ATTENTION, positions=Alibi())), "Alibi"),
        (replace(LAYER, mlp=replace(MLP, gated=False, clamp=7.0)), "clamp"),
    ],
)
def test_other_parts_are_refused_by_name(bench, layer: Layer, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run(bench, layers(LAYER, layer))
