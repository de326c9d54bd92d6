"""The accuracy experiment on a tiny model, and the error bars it prints."""

from __future__ import annotations

import json
import math
import runpy
import struct
from pathlib import Path

import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.evaluate.agreement import Agreement, standard_error
from support.service import tiny_file

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "experiments" / "accuracy.py"


def test_schemes_order_as_they_round(tmp_path: Path, capsys) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "accuracy.json"
    text.write_text("The earth goes around the sun once in a year, and the moon around the earth. " * 12)
    main = runpy.run_path(str(SCRIPT))["main"]
    schemes = "default;--precise --kv-dtype f32;--precise --kv-dtype int8"
    arguments = ["-m", str(tiny_file(tmp_path)), "--text", str(text), "--ctx", "128", "--chunks", "3"]
    assert main([*arguments, "--schemes", schemes, "-o", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert list(rows) == schemes.split(";")
    assert all(row["positions"] == 3 * 63 and "of_peer" not in row for row in rows.values())
    exact, int8 = rows["--precise --kv-dtype f32"], rows["--precise --kv-dtype int8"]
    assert 0 <= exact["mean_kl"] < 1e-6
    assert exact["mean_kl"] < int8["mean_kl"] < 1e-2
    assert exact["mean_kl"] < rows["default"]["mean_kl"] < 1e-1
    assert "--precise --kv-dtype int8" in capsys.readouterr().out


def test_standard_errors() -> None:
    assert standard_error([1.0]) is None
    assert standard_error([1.0, 2.0, 3.0, 6.0]) == pytest.approx(math.sqrt(14 / 3 / 4))
    agreement = Agreement(2)
    even, certain = (0.0, 0.0), (math.log(3), 0.0)
    rows = [pack(even, even), pack(even, certain)]
    agreement.add([rows[0]], [rows[1]], [0, 0])
    found = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert agreement.divergences == pytest.approx([0, found], abs=1e-7)
    assert agreement.mean_kl == pytest.approx(found / 2, abs=1e-7)
    assert agreement.kl_stderr == pytest.approx(found / 2, abs=1e-7)


def pack(*rows: tuple[float, float]) -> bytes:
    return b"".join(struct.pack("<2f", *row) for row in rows)
