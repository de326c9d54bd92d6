"""What import-linter cannot see: who may touch the extension and NumPy, and what an import costs."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import spola

SOURCE = Path(spola.__file__).parent
FILES = sorted(p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("name", FILES)
def test_the_extension_is_for_the_native_backend_alone(name):
    uses = any(i == "spola._native" or i.startswith("spola._native.") for i in imported(SOURCE / name))
    assert not uses or name.startswith("backends/native/")


@pytest.mark.parametrize("name", FILES)
def test_numpy_is_for_the_reference_and_evaluation(name):
    uses = any(i == "numpy" or i.startswith("numpy.") for i in imported(SOURCE / name))
    assert not uses or name.startswith(("backends/reference/", "evaluate/"))


@pytest.mark.parametrize("name", FILES)
def test_a_module_says_what_it_does(name):
    assert ast.get_docstring(ast.parse((SOURCE / name).read_text(encoding="utf-8"))), name


def test_importing_the_package_loads_nothing_of_it():
    code = "import json, sys, spola; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"msgspec", "tokenizers", "numpy", "jinja2", "click", "rich", "starlette", "spola._native"}
    loaded = set(json.loads(out.stdout))
    assert not loaded & heavy
    assert {m for m in loaded if m.startswith("spola")} == {"spola"}
