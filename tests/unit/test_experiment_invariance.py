"""The cost of invariance is weighed by what each operation takes of a step."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "tools" / "experiments" / "invariance.py"


@pytest.fixture(scope="module")
def module() -> dict[str, Any]:
    return runpy.run_path(str(FILE))


def test_a_slower_free_kernel_is_no_gain(module: dict[str, Any]) -> None:
    seconds = {"attention": 2.0, "matrices": 6.0, "other": 2.0}
    found = module["cost"](seconds, {"attention": 0.25, "matrices": -0.5}, 0.1, 10.0)
    assert found == pytest.approx({"attention": 0.05, "matrices": 0.0, "norms": 0.01, "step": 0.06})


def test_operations_are_weighed_by_their_time(module: dict[str, Any]) -> None:
    case = next(case for case in module["CASES"] if case.name == "decode 16")
    operations = [
        {"operation": "matrix attention.q + attention.k", "seconds": 3.0},
        {"operation": "matrix mlp.down", "seconds": 3.0},
        {"operation": "attention", "seconds": 1.5},
        {"operation": "merge of attention", "seconds": 0.5},
        {"operation": "head: logits", "seconds": 2.0},
    ]
    phase = {"operations": operations, "seconds": 10.0, "tokens": 160, "tok_s": 16.0}
    lines = {
        ("attention", case.attention): {"free_over_ours": 0.9},
        ("matrices", case.matrices): {"free_over_ours": 1.1},
        ("norm and quantize", "2000 rows"): {"ours_s": 4.0, "free_s": 2.0},
    }
    document = {"phases": {"decode": phase}, "layers": 2}
    row = module["weigh"](case, document, lines, threads=2)
    assert row["shares"] == pytest.approx({"matrices": 0.6, "attention": 0.2, "other": 0.2})
    # 160 rows go through 5 norms of a saved millisecond each, shared by two threads.
    norms = 160 * 5 * 0.001 / 2 / 10
    assert row["cost"]["step"] == pytest.approx(0.2 * 0.1 + norms)
