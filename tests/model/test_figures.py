"""The commands that make the figures of docs/understanding, as they stand there, on the embedded model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("spola._native")


def _tool() -> Any:
    spec: Any = importlib.util.spec_from_file_location("figures_run", ROOT / "tools" / "figures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures_run"] = module
    spec.loader.exec_module(module)
    return module


FIGURES = _tool()
MADE = {name: commands for one in FIGURES.chapters("en") for name, commands in one.figures.items()}


@pytest.mark.parametrize("name", MADE)
def test_the_commands_of_a_figure_run_and_draw_it(name):
    (ROOT / "build").mkdir(exist_ok=True)
    docs = FIGURES.run(MADE[name], busy=True)
    assert len(docs) == sum(not command.endswith("&") for command in MADE[name])
    assert "<svg" in FIGURES.DRAW[name](docs).render()
