"""A trial on the native backend: a sample of every weight type runs, and its figures are of a whole step."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.core.dtype import BY_NAME
from spola.planner import trial as trials
from spola.planner.model import open_plan_model
from spola.planner.sample import take_sample
from spola.planner.trial import BATCHES, PAIR, PROMPTS, run_trial
from support.tiny import Tiny, write_tiny_gguf


@pytest.mark.parametrize("dtype", sorted(BY_NAME))
def test_every_weight_type_can_be_tried(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "ROUNDS", (1, 1))
    monkeypatch.setattr(trials, "STEPS", 2)
    monkeypatch.setattr(trials, "PROMPTS", (4, 8))
    monkeypatch.setattr(trials, "BATCHES", (1, 2))
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, Tiny(layers=4, hidden=256, heads=4, head_dim=64, ff=256))
    model = open_plan_model(str(path))
    dtypes = {
        name: dtype if name.startswith("layers.") and len(name.split(".")) == 5 else kind
        for name, kind in model.dtypes.items()
    }
    found = run_trial(take_sample(model.spec, dtypes, 1 << 30), threads=2)
    assert all(seconds > 0 for seconds in found.layers.values())


def test_what_a_trial_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "ROUNDS", (1, 1))
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, Tiny(layers=6))
    model = open_plan_model(str(path))
    sample = take_sample(model.spec, model.dtypes, 1)
    assert len(sample.chosen) < 6
    found = run_trial(sample, threads=2, k_dtype="int8", v_dtype="int8")
    assert sorted(found.layers) == [*BATCHES, *PROMPTS, PAIR * max(PROMPTS)]
    assert sorted(found.head) == sorted(found.outside) == sorted(found.attention) == list(BATCHES)
    assert sorted(found.prompt) == [1, *PROMPTS]
    assert min(*found.layers.values(), *found.head.values(), *found.attention.values()) > 0
    assert min(found.decode_flop, found.prompt_flop) >= 0
    assert found.layers[256] < found.seconds(model.spec, [(0, 256, 1)])
