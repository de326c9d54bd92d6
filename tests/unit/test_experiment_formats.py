"""The number formats of one model: FP8 codes against the definition, and a tiny model through all of them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from support.blocks import e4m3_codes
from support.tiny import Tiny, write_tiny_gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "experiments"))

formats = importlib.import_module("formats")


def test_codes_are_the_nearest() -> None:
    """By the bits of the format: sign, four of exponent with bias 7, three of mantissa, no infinity."""
    values = np.random.default_rng(1).standard_normal(5000) * 10.0 ** np.linspace(-4, 3, 5000)
    codes = formats.e4m3_codes(values)
    different = codes != e4m3_codes(values)
    assert not different.any()
    assert formats.e4m3_codes(np.array([0.0, 448.0, 1e9, -448.0, 2.0**-9])).tolist() == [0, 126, 126, 254, 1]
    # Half way between two codes goes to the even one.
    assert formats.e4m3_codes(np.array([2.0**-10, 3 * 2.0**-10, 1.0625, 1.1875])).tolist() == [0, 2, 56, 58]


def test_every_format_of_a_tiny_model(tmp_path: Path, capsys) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "formats.json"
    text.write_text("The earth goes around the sun once in a year, and the moon around the earth. " * 8)
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model, Tiny(seed=5, head_dim=16, hidden=64, ff=128, dtype="F16"))
    arguments = ["-m", str(model), "--work", str(tmp_path / "work"), "--text", str(text), "--ctx", "128"]
    assert formats.main([*arguments, "--chunks", "2", "-o", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert list(rows) == list(formats.FORMATS)
    distances = {name: row["mean_kl"] for name, row in rows.items()}
    assert distances["FP32"] < 1e-6  # an f16 cache, and another order of sums
    assert distances["FP32"] <= distances["INT8 (Q8_0)"] < distances[formats.FP8] < distances["INT4 (Q4_0)"]
    sizes = [rows[name]["bytes"] for name in ("FP32", "FP16", formats.FP8, "INT4 (Q4_0)")]
    assert sizes == sorted(sizes, reverse=True)
    assert rows["BF16"]["bytes"] == rows["FP16"]["bytes"]
    assert formats.FP8 in capsys.readouterr().out
