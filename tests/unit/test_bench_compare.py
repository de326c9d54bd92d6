"""bench compare and bench report: rounds in turns, ratios with their spread, pages from JSON."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spola.bench.compare import interleave, ratios
from spola.bench.report import read_result
from spola.cli import bench_compare
from spola.core.errors import ConfigError
from spola.runtime.limits import MachineLimits
from support.cli import spola
from support.fake_server import fake_server, stream
from support.tiny import write_tiny_gguf


def test_rounds_take_turns_and_ratios_are_of_a_round() -> None:
    order: list[str] = []

    def side(name: str, values: list[float]) -> Any:
        left = iter(values)

        def measure() -> Mapping[str, float]:
            order.append(name)
            return {"tok_s": next(left)}

        return measure

    values = interleave(side("a", [10, 20, 40]), side("b", [11, 24, 44]), 3)
    assert "".join(order) == "abbaab"
    (row,) = ratios(values, {"tok_s": True})
    assert (row["a"], row["b"]) == (20, 24)
    assert row["ratio"] == pytest.approx(1.1)
    assert (row["ratio_min"], row["ratio_max"]) == (pytest.approx(1.1), pytest.approx(1.2))
    assert row["verdict"] == "b is better"
    assert ratios(values, {"tok_s": False})[0]["verdict"] == "a is better"
    assert ratios({"x": {"a": [1, 2], "b": [2, 1]}}, {})[0]["verdict"] == "no difference shown"


def test_two_servers() -> None:
    def answer(delay: float) -> Any:
        def one(body: dict[str, Any], connection: socket.socket) -> bool:
            time.sleep(delay)
            return stream(connection, ["a", "b"], usage={"prompt_tokens": 3, "completion_tokens": 2})

        return one

    with fake_server(answer(0.0)) as fast, fake_server(answer(0.3)) as slow:
        args = (slow.url, fast.url, "--requests", "2", "--concurrency", "2", "--repeat", "2", "--json")
        done = spola("bench", "compare", *args)
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["ttft_p50_ms"]["verdict"] == "b is better"
    assert rows["ttft_p50_ms"]["ratio"] < 1
    assert len(slow.bodies) == len(fast.bodies) == 2 * (2 + 1)


def test_two_configurations_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = MachineLimits("scalar", 1e15, {"f32": 1e18, "a8": 1e18, "a16": 1e18})
    monkeypatch.setattr(bench_compare, "measure_limits", lambda threads: fast)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    side = f"{path} --backend reference"
    args = (side, f"{side} --kv-dtype f32", "--prompt", "8", "-n", "2", "--repeat", "2", "--json")
    done = spola("bench", "compare", *args)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["what"] for row in result["rows"]] == ["prefill_tok_s", "decode_tok_s"]
    assert all(len(row["a_values"]) == 2 and row["ratio_min"] <= row["ratio"] for row in result["rows"])
    saved = tmp_path / "compare.json"
    saved.write_text(done.stdout)
    page = tmp_path / "report.html"
    assert spola("bench", "report", str(saved), "-o", str(page)).returncode == 0
    assert "decode_tok_s" in page.read_text()
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "")
    for wrong in (("x", "http://h:1"), ("x 'y", "y"), ("x --nonsense", "y")):
        assert spola("bench", "compare", *wrong).returncode == 2


def test_pages_of_every_kind(tmp_path: Path) -> None:
    machine = {"read_gb_s": 1.0}
    speed = {"tok_s": 9.0, "tok_s_min": 8.0, "tok_s_max": 10.0, "roofline": 0.5}
    decode = [{"batch": n, "depth": 0, **speed, "tok_s": 9.0 * n} for n in (1, 4, 8)]
    offline = {"model": "<m>", "threads": 2, "machine": machine, "decode": decode}
    offline |= {"prefill": {"tokens": 5, **speed}}
    kernel = {"type": "Q4_0", "rows": 4, "columns": 8, "gmac_s": 3.0, "of_peak": 0.5}
    kernels = {"machine": machine, "kernels": [kernel | {"m": m} for m in (1, 8)]}
    files = []
    for name, result in (("offline", offline), ("kernels", kernels)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(result))
        picture = tmp_path / f"{name}.svg"
        assert spola("bench", "report", str(files[-1]), "-o", str(picture)).returncode == 0
        ElementTree.parse(picture)
    page = tmp_path / "all.html"
    done = spola("bench", "report", *map(str, files), "-o", str(page), "--json")
    assert json.loads(done.stdout)["results"] == 2
    assert "&lt;m&gt;" in page.read_text()
    assert "<m>" not in page.read_text()
    assert spola("bench", "report", *map(str, files), "-o", str(tmp_path / "x.svg")).returncode == 2
    files[0].write_text("{}")
    assert "no result" in spola("bench", "report", str(files[0]), "-o", str(page)).stderr
    files[0].write_text("{")
    with pytest.raises(ConfigError, match="valid JSON"):
        read_result(files[0])
