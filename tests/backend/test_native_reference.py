"""The native backend against the quantized reference: every weight type, every part it lowers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.backends.native import NativeRunner
from spola.backends.reference import QuantizedReferenceRunner
from spola.core.dtype import BY_NAME
from spola.core.params import SamplingParams
from spola.core.runner import Tensor
from spola.spec.decoder import DecoderSpec, LayerNorm, LearnedPositions, NoPositions, RmsNorm
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest
from support.blocks import encode
from support.drive import Driver, Job, greedy
from support.tiny import Tiny, TinyModel

TOKENS = np.random.default_rng(5).integers(0, 288, 300).tolist()
JOBS = [
    Job(TOKENS[:70], want="logits"),
    Job(TOKENS[70:75], 6, greedy()),
    Job(TOKENS[80:113], 6, SamplingParams(temperature=0.8, top_p=0.9, logprobs=2), seed=3),
    Job(TOKENS[:40], want="embed_mean"),
]


class Model:
    """A tiny model with parts changed; tensors that the changed spec adds are made here."""

    def __init__(self, tiny: Tiny, **attention) -> None:
        self.base = TinyModel(tiny)
        spec = self.base.spec
        layers = tuple(
            replace(layer, attention=replace(layer.attention, **attention)) for layer in spec.layers
        )
        self.spec: DecoderSpec = replace(spec, layers=layers)

    def tensors(self) -> list[Tensor]:
        rng = np.random.default_rng(9)
        known = {t.name: t for t in self.base.tensors}
        for info in manifest(self.spec):
            if info.name not in known or known[info.name].shape != info.shape:
                values = 1 + 0.2 * rng.standard_normal(info.shape)
                known[info.name] = Tensor(info.name, "F32", info.shape, encode("F32", values))
        return [known[info.name] for info in manifest(self.spec)]

    def run(self, runner, jobs=JOBS, chunk: int = 16, kv: str = "f16", **config):
        k, _, v = kv.partition(",")
        groups = kv_groups(self.spec, k, v or k)
        config = replace_config(self.base.config(**config), groups)
        runner.load(self.spec, self.tensors(), config)
        if not hasattr(runner, "poison"):
            runner.poison = lambda group, block: None
        return Driver(runner, config, self.spec.vocab).run(jobs, chunk)


def replace_config(config, groups):
    import msgspec

    return msgspec.structs.replace(config, kv_groups=groups, kv_blocks=(config.kv_blocks[0],) * len(groups))


def compare(model: Model, **config) -> None:
    want = model.run(QuantizedReferenceRunner(), **config)
    got = model.run(NativeRunner(), **config)
    for a, b in zip(want, got, strict=True):
        assert a.error is b.error is None
        assert a.ids == b.ids
        for x, y in zip(a.logprobs, b.logprobs, strict=True):
            assert x.logprob == pytest.approx(y.logprob, abs=1e-4)
            assert [i for i, _ in x.top] == [i for i, _ in y.top]
        for x, y in ((a.logits, b.logits), (a.vector, b.vector)):
            if x is not None and len(x):
                assert np.abs(np.array(x) - np.array(y)).max() <= 1e-4 * np.abs(x).max()
    assert any(out.logits for out in got)


@pytest.mark.parametrize("dtype", sorted(BY_NAME))
@pytest.mark.parametrize("precise", [False, True])
def test_every_weight_type(dtype: str, precise: bool) -> None:
    wide = BY_NAME[dtype].block == 256
    ff = 256 if wide else 128 if BY_NAME[dtype].block == 64 else 96
    tiny = Tiny(seed=1, layers=1, dtype=dtype, hidden=256 if wide else 64, ff=ff)
    compare(Model(replace(tiny, head_dim=64 if wide else 16)), precise=precise)


def test_types_mixed_within_a_layer() -> None:
    mixed = {"attention.v": "Q8_0", "attention.k": "F16", "mlp.down": "Q5_1", "embedding": "Q8_0"}
    compare(Model(Tiny(seed=2, dtypes=mixed)))


@pytest.mark.parametrize(
    "changes",
    [
        {"tied": False, "biases": True},
        {"heads": 8, "kv_heads": 1, "head_dim": 8},
        {"heads": 3, "kv_heads": 3, "head_dim": 20, "hidden": 100, "ff": 52, "dtype": "F16"},
        {"vocab": 300, "ff": 160},
        {"rope_factors": True, "head_dim": 32},
    ],
)
@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_shapes(changes: dict, kv: str) -> None:
    compare(Model(replace(Tiny(seed=3), **changes)), kv=kv)


@pytest.mark.parametrize(("k_dim", "v_dim"), [(1, 1), (7, 3), (31, 33), (34, 63), (65, 96), (72, 40)])
def test_int8_of_any_head_size(k_dim: int, v_dim: int) -> None:
    model = Model(Tiny(seed=6, layers=1), k_dim=k_dim, v_dim=v_dim, positions=NoPositions())
    compare(model, kv="int8")


@pytest.mark.parametrize("kv", ["f16", "f32", "int8", "int8,f32", "f16,int8"])
def test_contexts_of_several_segments(kv: str) -> None:
    model = Model(Tiny(seed=4, layers=1))
    long = [Job([*TOKENS, *TOKENS][:530], 4, greedy()), Job(TOKENS[:256], 2, greedy())]
    want = model.run(QuantizedReferenceRunner(), long, chunk=512, kv=kv)
    for threads in (1, 3):
        got = model.run(NativeRunner(), long, chunk=512, kv=kv, threads=threads)
        assert [out.ids for out in got] == [out.ids for out in want]
        for a, b in zip(want, got, strict=True):
            assert [x.logprob for x in a.logprobs] == pytest.approx([x.logprob for x in b.logprobs], abs=1e-5)


@pytest.mark.parametrize(
    "attention",
    [
        {"window": 20},
        {"window": 33, "softcap": 4.0},
        {"softcap": 2.0},
        {"positions": NoPositions()},
        {"q_norm": RmsNorm(1e-6), "k_norm": RmsNorm(1e-6, offset=0.5)},
        {"q_norm": RmsNorm(1e-6), "k_norm": RmsNorm(1e-6), "qk_norm_span": "whole"},
        {"sinks": True},
        {"sinks": True, "window": 40, "heads": 4, "scale": 0.125},
    ],
    ids=lambda a: "-".join(a),
)
def test_attention_parts(attention: dict) -> None:
    compare(Model(Tiny(seed=5), **attention))


@pytest.mark.parametrize("dim", [8, 16])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rope_layouts(layout: str, dim: int) -> None:
    model = Model(Tiny(seed=6))
    rope = replace(model.base.spec.layers[0].attention.positions, layout=layout, dim=dim)
    compare(Model(Tiny(seed=6), positions=rope))


def test_norms_scales_and_the_head() -> None:
    model = Model(Tiny(seed=7))
    layers = []
    for layer in model.spec.layers:
        mlp = replace(layer.mlp, activation="gelu_tanh")
        pre = (LayerNorm(1e-5), LayerNorm(1e-5, weight=False, bias=False))
        layers.append(
            replace(layer, mlp=mlp, pre_attention_norm=pre[0], pre_mlp_norm=pre[1], residual_scale=0.5)
        )
    head = replace(model.spec.head, scale=0.25, softcap=3.0, bias=True)
    norm = RmsNorm(1e-5, offset=1.0)
    model.spec = replace(model.spec, layers=tuple(layers), head=head, final_norm=norm, embedding_scale=2.5)
    compare(model)


NORM, SHIFTED = RmsNorm(1e-5), RmsNorm(1e-5, offset=0.25)


@pytest.mark.parametrize(
    ("layer", "whole"),
    [
        ({"post_attention_norm": SHIFTED, "post_mlp_norm": NORM}, {}),
        ({"post_attention_norm": NORM, "residual_scale": 0.3}, {}),
        ({"residual": "parallel"}, {}),
        ({"residual": "parallel", "pre_mlp_norm": None, "residual_scale": 1.5}, {}),
        ({"residual": "parallel", "post_attention_norm": NORM, "post_mlp_norm": NORM}, {}),
        ({"pre_attention_norm": None, "pre_mlp_norm": None}, {"final_norm": None}),
        ({}, {"positions": LearnedPositions(1024, offset=2)}),
        ({}, {"embedding_norm": LayerNorm(1e-5), "positions": LearnedPositions(1024)}),
    ],
    ids=[
        "sandwich",
        "post",
        "parallel",
        "shared-norm",
        "parallel-sandwich",
        "no-norms",
        "learned",
        "embedding-norm",
    ],
)
def test_residuals_and_positions(layer: dict, whole: dict) -> None:
    model = Model(Tiny(seed=8))
    layers = tuple(replace(one, **layer) for one in model.spec.layers)
    model.spec = replace(model.spec, layers=layers, **whole)
    compare(model)
    compare(model, threads=3)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu", "relu2"])
@pytest.mark.parametrize("gated", [False, True])
def test_activations(activation: str, gated: bool) -> None:
    model = Model(Tiny(seed=9, layers=1))
    layers = tuple(
        replace(x, mlp=replace(x.mlp, activation=activation, gated=gated)) for x in model.spec.layers
    )
    model.spec = replace(model.spec, layers=layers)
    compare(model)
