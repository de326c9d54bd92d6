"""Weights on their way in: what is missing, wrong or damaged is refused by name; what goes wrong later."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from spola.core.errors import ModelError
from spola.core.runner import Tensor
from support.blocks import encode
from support.drive import Driver, Job, greedy
from support.tiny import Tiny, TinyModel

TINY = Tiny(seed=5, layers=1, dtypes={"mlp.down": "F32"})


def load(bench, model: TinyModel, tensors: list[Tensor]) -> Driver:
    runner, config = bench.runner(), model.config()
    runner.load(model.spec, iter(tensors), config)
    return Driver(runner, config, model.tiny.vocab)


@pytest.mark.parametrize("name", [tensor.name for tensor in TinyModel(TINY)])
def test_a_missing_tensor_is_named(bench, name: str) -> None:
    model = TinyModel(TINY)
    in_file = next(info.gguf for info in model.infos if info.name == name)
    with pytest.raises(ModelError, match=f"{re.escape(name)}|{re.escape(in_file)}"):
        load(bench, model, [t for t in model if t.name != name])


def test_a_wrong_shape_is_named(bench) -> None:
    model = TinyModel(TINY)
    wrong = [
        Tensor(t.name, t.dtype, (t.shape[0] // 2, t.shape[1] * 2), t.data)
        if t.name.endswith("mlp.up.weight")
        else t
        for t in model
    ]
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up\.weight"):
        load(bench, model, wrong)


def test_a_foreign_tensor_is_named(bench) -> None:
    if bench.kind == "native":
        pytest.skip("the native backend takes what its program names and leaves the rest")
    model = TinyModel(TINY)
    foreign = Tensor("layers.9.mlp.up.weight", "F32", (2,), encode("F32", np.zeros(2)))
    with pytest.raises(ModelError, match=r"layers\.9\.mlp\.up\.weight"):
        load(bench, model, [*model, foreign])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "at", "kind"),
    [
        ("embedding.weight", 20 * 7, np.float16),
        ("layers.0.attention.q.weight", 0, np.float16),
        ("layers.0.mlp.gate.weight", 20 * 11 + 2, np.float16),  # a minimum
        ("layers.0.mlp.down.weight", 4 * 77, np.float32),
        ("layers.0.pre_mlp_norm.weight", 4 * 3, np.float32),
        ("final_norm.weight", 0, np.float32),
    ],
)
def test_damaged_weights_are_refused(bench, name: str, at: int, kind, bad: float) -> None:
    model = TinyModel(TINY)

    def damage(tensor: Tensor) -> Tensor:
        if tensor.name != name:
            return tensor
        data = bytearray(tensor.data)
        value = kind(bad).tobytes()
        data[at : at + len(value)] = value
        return Tensor(tensor.name, tensor.dtype, tensor.shape, bytes(data))

    with pytest.raises(ModelError, match=name.replace(".", r"\.")) as caught:
        load(bench, model, [damage(tensor) for tensor in model])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("down", ["F32", "F16", "Q4_0", "Q8_0"])
def test_values_that_overflow_end_one_request(bench, down: str) -> None:
    """Token 5 alone has a direction that the MLP blows up beyond f32; its neighbours do not notice."""
    model = TinyModel(replace(TINY, layers=2, dtype="F32", dtypes={"mlp.down": down}))
    arrays = {t.name: model.array(t.name).copy() for t in model}
    arrays["embedding.weight"][:, 0] = 0
    arrays["embedding.weight"][5] = 0
    arrays["embedding.weight"][5, 0] = 8.0
    arrays["layers.0.attention.o.weight"][0] = 0
    arrays["layers.0.mlp.gate.weight"][:, 0] = 1e20
    arrays["layers.0.mlp.up.weight"][:, 0] = 1e20
    changed = [
        Tensor(t.name, t.dtype, t.shape, encode(t.dtype, arrays[t.name])) if t.dtype == "F32" else t
        for t in model
    ]
    driver = load(bench, model, changed)
    never = {5: -100.0}
    good = [
        Job([1, 2, 3, 4], 5, greedy(logit_bias=never)),
        Job([9, 8], 5, greedy(temperature=0.5, logit_bias=never)),
    ]
    want = driver.run(good)
    assert all(out.error is None for out in want)
    got = driver.run([good[0], Job([7, 5, 7], 5), good[1]])
    assert got[1].error is not None
    assert "finite" in got[1].error
    assert got[1].ids == []
    assert [got[0].ids, got[2].ids] == [out.ids for out in want]
    alone = driver.alone(Job([7, 5, 7], want="score"))
    assert alone.error is not None
    assert alone.scores == []


def test_a_closed_runner_is_not_run(bench) -> None:
    driver = load(bench, TinyModel(TINY), list(TinyModel(TINY)))
    driver.alone(Job([1, 2], 1))
    memory = driver.runner.memory()
    assert {"weights", "kv", "workspace"} <= memory.keys()
    assert memory["weights"] > 10_000
    assert memory["kv"] == 64 * 32 * 2 * 2 * 16 * 2 * 1
    driver.runner.close()
    driver.runner.close()
    with pytest.raises(Exception, match=r"."):
        driver.runner.memory()
