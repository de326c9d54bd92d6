"""The batching experiment in virtual time: the modes order as theory says, and the figures hold together."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from xml.etree import ElementTree

from support.service import tiny_file

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "experiments" / "batching.py"


def test_continuous_batching_wastes_less_and_keeps_nobody_waiting(tmp_path: Path, capsys) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    model = str(tiny_file(tmp_path))
    options = ["--backend", "null", "--requests", "48", "--batch", "16", "--sizes", "1,4,8"]
    assert main(["-m", model, "-o", str(tmp_path), *options]) == 0
    result = json.loads((tmp_path / "batching.json").read_text())
    a, b = result["a"], result["b"]
    assert b["fixed"]["queue_ms"]["mean"] > b["static"]["queue_ms"]["mean"]
    for modes in (a, b):
        assert all(modes[mode]["requests"] == 48 for mode in ("static", "dynamic", "continuous"))
    # All present: a dynamic batch is full at once, and is then a static one.
    assert a["dynamic"] == a["static"]
    assert a["continuous"]["idle_seats"] < 0.6 * a["static"]["idle_seats"]
    assert a["prediction"]["over_static"] > 1.1
    assert abs(a["prediction"]["error"]) < 0.1
    assert b["continuous"]["latency_ms"]["p95"] < b["static"]["latency_ms"]["p95"]
    assert b["continuous"]["ttft_ms"]["p95"] < 0.5 * b["static"]["ttft_ms"]["p95"]
    sizes = result["sizes"]
    assert [entry["batch"] for entry in sizes] == [1, 4, 8]
    assert sizes[0]["output_tok_s"] < sizes[1]["output_tok_s"]
    assert sizes[0]["tpot_ms"] <= sizes[1]["tpot_ms"] <= sizes[2]["tpot_ms"]
    drawing = ElementTree.parse(tmp_path / "batching.svg").getroot()
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert {"static", "dynamic", "continuous", "prefill", "decode"} <= set(texts)
    assert "prediction" not in capsys.readouterr().err
