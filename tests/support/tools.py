"""Scripts of ``tools/`` as modules, for tests of what they do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "load_tool"]

ROOT = Path(__file__).resolve().parents[2]


def load_tool(name: str) -> Any:
    """The module of ``tools/<name>.py``, loaded anew."""
    spec: Any = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
