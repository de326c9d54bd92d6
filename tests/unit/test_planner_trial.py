"""Trials of a model: which sample is taken, what is loaded, and how a step's time is put together."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from spola.core.dtype import BY_NAME, nbytes
from spola.planner import tried
from spola.planner.model import PlanModel
from spola.planner.sample import sample_tensors, take_sample
from spola.planner.speed import Speed
from spola.planner.trial import Trial, between
from spola.planner.tried import try_model
from spola.runtime.limits import MachineLimits
from spola.runtime.machine import probe
from spola.spec.cost import attention_flops, weight_bytes
from spola.spec.decoder import Attention, DecoderSpec, DenseMlp, Head, Layer, NoPositions, RmsNorm
from spola.spec.kv import kv_groups
from spola.spec.manifest import manifest

NORM = RmsNorm(1e-5)
FULL = Layer(Attention(4, 2, 16, 16, 0.25, NoPositions()), DenseMlp(128, "silu"), NORM, NORM)
NEAR = replace(FULL, attention=replace(FULL.attention, window=64))
# Of six layers each looks far once.
SPEC = DecoderSpec("x", "x", 5000, 64, 999, (*(NEAR,) * 5, FULL) * 4, NORM, Head(tied=True))
TRIAL = Trial(
    layers={1: 0.010, 8: 0.017, 64: 0.073},
    head={1: 0.002, 8: 0.009},
    outside={1: 0.0003, 8: 0.001},
    attention={1: 0.001, 8: 0.008},
    prompt={1: 0.001, 64: 0.064},
    short=4,
    decode_flop=1e-9,
    prompt_flop=2e-9,
)


def types(spec: DecoderSpec, matrices: str = "Q4_0") -> dict[str, str]:
    kinds = {"embedding": "Q8_0", "linear": matrices}
    return {info.name: kinds.get(info.role, "F32") for info in manifest(spec)}


def test_a_small_model_is_its_own_sample() -> None:
    sample = take_sample(SPEC, types(SPEC), 1 << 30)
    assert sample.spec == SPEC
    assert sample.dtypes == types(SPEC)
    assert sample.whole([1.0] * 24) == 24


def test_a_sample_has_its_share_of_every_kind() -> None:
    dtypes = types(SPEC) | {f"layers.{i}.mlp.down.weight": "Q8_0" for i in range(0, 24, 2)}
    size = weight_bytes(SPEC, dtypes) // 2
    sample = take_sample(SPEC, dtypes, size)
    assert sample.chosen[-1] == 23
    assert set(sample.kinds) == {sample.kinds[i] for i in sample.chosen}
    assert 10 <= len(sample.chosen) <= 14
    assert sample.vocab == 5000
    assert 1024 <= sample.spec.vocab <= size // 4 / nbytes(BY_NAME["Q8_0"], 64)
    assert weight_bytes(sample.spec, sample.dtypes) < 1.3 * size
    for name, dtype in sample.dtypes.items():
        if name.endswith("mlp.down.weight"):
            layer = int(name.split(".")[1])
            assert dtype == dtypes[f"layers.{sample.chosen[layer]}.mlp.down.weight"]
    # Layers that take what their kind takes, and a last one that takes less.
    costs = [1.0 + kind for kind in sample.kinds]
    costs[-1] = 0.25
    assert sample.whole([costs[i] for i in sample.chosen]) == pytest.approx(sum(costs))


def test_a_sample_is_never_without_a_layer() -> None:
    sample = take_sample(SPEC, types(SPEC), 1)
    assert len(sample.chosen) == 3  # one of each kind, and the last
    assert sample.spec.vocab == 1024


@pytest.mark.parametrize("matrices", sorted(BY_NAME))
def test_tensors_are_as_a_load_takes_them(matrices: str) -> None:
    wide = replace(SPEC, hidden=256, vocab=300, layers=(replace(FULL, mlp=DenseMlp(256, "silu")),) * 2)
    wide = replace(
        wide, layers=tuple(replace(one, attention=replace(one.attention, heads=16)) for one in wide.layers)
    )
    sample = take_sample(wide, types(wide, matrices), 1 << 20)
    shapes = {info.name: info.shape for info in manifest(sample.spec)}
    for tensor in sample_tensors(sample):
        assert tensor.shape == shapes.pop(tensor.name)
        assert len(tensor.data) == nbytes(BY_NAME[tensor.dtype], math.prod(tensor.shape))
    assert not shapes


def test_between_points_and_beyond() -> None:
    table = {1: 10.0, 3: 14.0, 8: 34.0}
    assert [between(table, at) for at in (1, 2, 3, 5, 8, 10)] == [10, 12, 14, 22, 34, 42]
    assert between({4: 7.0}, 100) == 7
    assert between({2: 1.0, 3: 5.0}, 1) == 0


def test_a_step_is_the_sum_of_its_parts() -> None:
    one = 0.0003 + 0.010 + 0.002 + 0.001
    assert TRIAL.seconds(SPEC, [(3, 1, 1)]) == pytest.approx(one)
    far = 1e-9 * (attention_flops(SPEC, 1, 100) - attention_flops(SPEC, 1, 4))
    assert TRIAL.seconds(SPEC, [(100, 1, 1)]) == pytest.approx(one + far)
    both = 0.0004 + 0.011 + 0.003 + 0.002
    assert TRIAL.seconds(SPEC, [(3, 1, 1), (100, 1, 1)]) == pytest.approx(both + far)
    prompt = 0.0003 + 0.041 + 0.032
    assert TRIAL.seconds(SPEC, [(0, 32, 0)]) == pytest.approx(prompt)
    more = 2e-9 * (attention_flops(SPEC, 32, 32) - attention_flops(SPEC, 32, 0))
    assert TRIAL.seconds(SPEC, [(32, 32, 1)]) == pytest.approx(prompt + 0.002 + more)
    longer = 0.064 * attention_flops(SPEC, 128, 0) / attention_flops(SPEC, 64, 0)
    assert TRIAL.seconds(SPEC, [(0, 128, 0)]) == pytest.approx(0.0003 + 0.137 + longer)


def test_a_speed_with_a_trial_goes_by_it_for_the_same_weights_only() -> None:
    limits = MachineLimits("x", 30e9, {"f32": 2e11, "a8": 8e11, "a16": 4e11})
    groups = kv_groups(SPEC)
    speed = Speed(SPEC, types(SPEC), groups, limits, {}, 2, 1e-4, 1e-5, trial=TRIAL)
    assert speed.decode(1, 5) == pytest.approx(TRIAL.seconds(SPEC, [(4, 1, 1)]))
    assert speed.of(types(SPEC), groups).trial is TRIAL
    other = speed.of(types(SPEC, "Q8_0"), groups)
    assert other.trial is None
    assert other.decode(1, 5) != speed.decode(1, 5)


def test_a_trial_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tried, "machine_key", lambda machine, threads, precise: f"{threads}")
    monkeypatch.setattr(tried, "believed", lambda others, tries: True)
    made = []

    def run(sample: object, **given: object) -> Trial:
        made.append(given)
        return TRIAL

    monkeypatch.setattr(tried, "run_trial", run)
    machine = replace(probe(), memory_available=8 << 30)
    model, groups = PlanModel("x", SPEC, types(SPEC), "here"), kv_groups(SPEC, "int8", "f16")
    first = try_model(model, groups, machine, 2)
    assert first is not None
    assert first.layers == TRIAL.layers
    assert made == [{"threads": 2, "k_dtype": "int8", "v_dtype": "f16", "precise": False}]
    assert try_model(model, groups, machine, 2) == first
    assert len(made) == 1
    for again in (
        lambda: try_model(model, groups, machine, 1),
        lambda: try_model(model, kv_groups(SPEC), machine, 2),
        lambda: try_model(replace(model, dtypes=types(SPEC, "Q8_0")), groups, machine, 2),
        lambda: try_model(model, groups, machine, 2, fresh=True),
    ):
        count = len(made)
        assert again() is not None
        assert len(made) == count + 1
    assert try_model(model, groups, replace(machine, memory_available=1000), 3) is None


def test_a_trial_beside_other_work_gives_way_to_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tried, "machine_key", lambda machine, threads, precise: "x")
    monkeypatch.setattr(tried, "believed", lambda others, tries: others < 0.1)
    coming = [(0.5, 1.0), (0.9, 2.0), (0.05, 3.0)]

    def run(sample: object, **given: object) -> Trial:
        return Trial(
            layers={1: coming[0][1]},
            head={1: 0.0},
            outside={1: 0.0},
            attention={1: 0.0},
            prompt={1: 0.0},
            short=4,
            decode_flop=0.0,
            prompt_flop=0.0,
        )

    class Watch:
        def __enter__(self) -> Watch:
            return self

        def __exit__(self, *_: object) -> None:
            self.others = coming.pop(0)[0]

    monkeypatch.setattr(tried, "run_trial", run)
    monkeypatch.setattr(tried, "watch", Watch)
    machine = replace(probe(), memory_available=8 << 30)
    model, groups = PlanModel("x", SPEC, types(SPEC), "here"), kv_groups(SPEC)
    found = [try_model(model, groups, machine, 2) for _ in range(4)]
    assert [trial.layers[1] for trial in found if trial is not None] == [1.0, 1.0, 3.0, 3.0]
