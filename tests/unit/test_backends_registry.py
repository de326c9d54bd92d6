"""Backends are found by name, and a name that is not there says which are."""

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from spola.backends import registry
from spola.core.errors import ConfigError, MissingExtraError

ROOT = Path(__file__).resolve().parents[2]


def with_points(monkeypatch, *points):
    found = [EntryPoint(name, value, registry.GROUP) for name, value in points]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.GROUP else [])


def test_the_table_is_that_of_the_package():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared[registry.GROUP] == registry.BUILTIN


def test_an_unknown_name_lists_the_known_ones(monkeypatch):
    with_points(monkeypatch)
    with pytest.raises(ConfigError, match="unknown backend 'cuda': use one of native, null, reference"):
        registry.backend("cuda")


def test_other_packages_add_theirs(monkeypatch):
    with_points(monkeypatch, ("mine", "spola.backends.null:NullRunner"), ("null", registry.BUILTIN["null"]))
    assert registry.names() == sorted({"mine", *registry.BUILTIN})
    assert registry.backend("mine").__name__ == "NullRunner"


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (
            ("null", "elsewhere:Runner"),
            "two backends are named 'null': spola.backends.null:NullRunner and else",
        ),
        (
            ("mine", "no_such_module:Runner"),
            "backend 'mine' cannot be loaded: No module named 'no_such_module'",
        ),
        (("mine", "spola.backends.null:Nothing"), "cannot be loaded: .*Nothing"),
        (("mine", "spola.backends.shapes:check_step"), "is no Runner class"),
        (("mine", "spola.backends.shapes:StepError"), "is no Runner class"),
    ],
)
def test_a_bad_entry_point_is_named(monkeypatch, point, text):
    with_points(monkeypatch, point)
    with pytest.raises(ConfigError, match=text):
        registry.backend(point[0])


def test_a_missing_library_names_its_extra(monkeypatch):
    with_points(monkeypatch)
    monkeypatch.setitem(sys.modules, "numpy", None)
    for module in [m for m in sys.modules if m.startswith("spola.backends.reference")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(
        MissingExtraError, match=r"^backend 'reference' needs NumPy: pip install 'spola\[eval\]'$"
    ):
        registry.backend("reference")
