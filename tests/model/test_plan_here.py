"""A plan of this machine: its figures are measured once and kept; its memory is what a load then takes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.backends.native import NativeRunner
from spola.cli.options import plan_lines
from spola.core.errors import CapacityError
from spola.load.model import open_model
from spola.load.resolve import resolve_model
from spola.runtime import limits
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.contention import Contention
from spola.runtime.drafting import open_draft
from spola.runtime.machine import describe_bytes, probe
from spola.runtime.resolve import resolve
from support.cli import spola
from support.tiny import Tiny, write_tiny_gguf


def test_the_plan_is_what_a_load_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_BUFFER", 8 << 20)
    monkeypatch.setattr(limits, "watch", lambda: nullcontext(Contention()))
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    args = ("plan", str(path), "--context", "100", "--concurrency", "3", "--threads", "2", "--json")
    done = spola(*args, **home)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    options = Options(max_model_len=100, max_seqs=3, threads=2, kv_memory=figures["memory"]["kv"])
    loaded = load_engine(str(path), options)
    held = loaded.engine.runner.memory()
    loaded.engine.close()
    assert {name: figures["memory"][name] for name in held} == held
    assert figures["decode_tok_s"] > 0
    assert figures["prefill_tok_s"] > 0
    # Kept: a second plan measures nothing.
    monkeypatch.setattr(limits, "measure_limits", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(limits, "measure_rates", lambda *_, **__: pytest.fail("measured again"))
    again = json.loads(spola(*args, **home).stdout)
    assert again["read_bytes_per_s"] == figures["read_bytes_per_s"]


def test_a_draft_model_is_in_the_plan(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    write_tiny_gguf(tmp_path / "draft.gguf", Tiny(layers=1))
    options = Options(speculate=f"draft={tmp_path / 'draft.gguf'}", max_model_len=256, max_seqs=2)
    loaded = load_engine(str(tmp_path / "tiny.gguf"), options)
    drafter, plan = loaded.engine.drafter, loaded.config.memory
    assert drafter is not None
    assert plan is not None
    taken = drafter.runner.memory()
    loaded.engine.close()
    assert (plan.draft, plan.draft_kv) == (taken["weights"] + taken["workspace"], taken["kv"])
    (line,) = plan_lines(loaded.config)
    assert f"+ draft model draft {describe_bytes(plan.draft)} and its KV cache" in line
    little = replace(probe(), memory_limit=1 << 20, memory_available=1 << 20)
    with (
        pytest.raises(CapacityError, match=r"for the draft model.*no draft model"),
        open_model(resolve_model(str(tmp_path / "tiny.gguf"))) as model,
        open_draft(options) as draft,
    ):
        resolve(model, options, little, NativeRunner(), draft)
