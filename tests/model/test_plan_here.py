"""A plan of this machine: its figures are measured once and kept; its memory is what a load then takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.runtime import limits
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from support.cli import spola
from support.tiny import write_tiny_gguf


def test_the_plan_is_what_a_load_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_BUFFER", 8 << 20)
    monkeypatch.setattr(limits.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
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
