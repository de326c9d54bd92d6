"""spola profile: shares add up, bytes and multiply-adds are those of the spec, every output is whole."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.bench.profile import profile
from spola.cli import profile as command
from spola.core.errors import ConfigError
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.limits import MachineLimits
from spola.spec.cost import kv_read_bytes, matmul_parameters, tail_parameters
from support.cli import spola
from support.tiny import write_tiny_gguf

FAST = MachineLimits("scalar", 1e15, {"f32": 1e18, "a8": 1e18, "a16": 1e18})


def test_operations_are_counted_from_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    loaded = load_engine(str(path), Options(max_seqs=2, max_model_len=64, threads=2))
    result = profile(loaded, FAST, prompt=20, tokens=4, batch=2, repeat=2)
    spec, groups = loaded.spec, loaded.config.kv_groups
    loaded.engine.close()
    for name, rows, heads, steps in (("prefill", 20, 1, 1), ("decode", 8, 8, 4)):
        phase = result["phases"][name]
        table = {row["operation"]: row for row in phase["operations"]}
        assert (phase["steps"], phase["tokens"]) == (steps, rows)
        assert math.fsum(row["share"] for row in phase["operations"]) == pytest.approx(1)
        matrices = sum(row["macs"] for key, row in table.items() if key.startswith("matrix"))
        tail = tail_parameters(spec)
        assert matrices == (matmul_parameters(spec) - tail) * rows + tail * heads
        assert table["head: logits"]["macs"] == spec.hidden * spec.vocab * heads
        assert {"attention", "sampling", "Python and the call"} <= set(table)
        # With a row or two every worker prepares them for itself, within the matrix that follows.
        assert ("norm and quantize" in table) == (name == "prefill")
        assert all(row["seconds"] >= 0 for row in phase["operations"])
        assert len(phase["timeline"]) == steps
    decode = {row["operation"]: row for row in result["phases"]["decode"]["operations"]}
    # Both requests have 20 tokens cached; the steps that brought them there may have gone on.
    assert decode["attention"]["bytes"] >= 2 * sum(kv_read_bytes(groups, 21 + i) for i in range(4))
    assert decode["matrix mlp.gate + mlp.up"]["roofline"] < 1


def test_a_backend_without_times_is_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    loaded = load_engine(str(tmp_path / "tiny.gguf"), Options(backend="null", max_seqs=1))
    with pytest.raises(ConfigError, match="null does not time"):
        profile(loaded, FAST, prompt=4, tokens=1, batch=1)
    loaded.engine.close()


def test_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    monkeypatch.setattr(command, "measure_limits", lambda threads, size: FAST)
    page, trace = tmp_path / "p.html", tmp_path / "p.json"
    args = ("profile", str(path), "-p", "12", "-n", "3", "--html", str(page), "--chrome-trace", str(trace))
    done = spola(*args)
    assert done.returncode == 0, done.stderr
    assert "matrix mlp.down" in done.stdout
    assert "of roofline" in done.stdout
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "Roofline" in text
    assert "src=" not in text
    events = json.loads(trace.read_text())
    steps = [event for event in events if event["name"].startswith("decode ")]
    assert len(steps) == 3
    result = json.loads(spola(*args, "--json").stdout)
    assert set(result["phases"]) == {"prefill", "decode"}
