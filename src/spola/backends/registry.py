"""Backends by name: those of this package, and any that another package registers.

A package adds one by an entry point in the group ``spola.backends`` that names its Runner class. Nothing is
imported until its name is asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from spola.core.errors import ConfigError, MissingExtraError
from spola.core.runner import Runner

__all__ = ["BUILTIN", "GROUP", "backend", "names"]

GROUP = "spola.backends"

# As in pyproject.toml; here too so that they are found in a source tree that is not installed.
BUILTIN = {
    "native": "spola.backends.native:NativeRunner",
    "null": "spola.backends.null:NullRunner",
    "reference": "spola.backends.reference:ReferenceRunner",
    "reference-quantized": "spola.backends.reference:QuantizedReferenceRunner",
}


def _found() -> dict[str, EntryPoint]:
    found = {name: EntryPoint(name, value, GROUP) for name, value in BUILTIN.items()}
    for point in entry_points(group=GROUP):
        known = found.get(point.name)
        if known is not None and known.value != point.value:
            raise ConfigError(
                f"two backends are named {point.name!r}: {known.value} and {point.value}; uninstall one"
            )
        found[point.name] = point
    return found


def names() -> list[str]:
    """Names that ``backend`` knows, sorted. Raises ConfigError if two packages claim the same name."""
    return sorted(_found())


def backend(name: str) -> type[Runner]:
    """The Runner class called ``name``.

    Raises ConfigError for an unknown name, listing the known ones, and for one whose module is not there;
    MissingExtraError if it needs an extra that is not installed.
    """
    found = _found()
    if name not in found:
        raise ConfigError(f"unknown backend {name!r}: use one of {', '.join(sorted(found))}")
    try:
        runner = found[name].load()
    except ModuleNotFoundError as error:
        if error.name == "numpy":
            raise MissingExtraError(f"backend {name!r} needs NumPy: pip install 'spola[eval]'") from None
        raise ConfigError(f"backend {name!r} cannot be loaded: {error}; reinstall its package") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"backend {name!r} cannot be loaded: {error}; reinstall its package") from error
    if not isinstance(runner, type) or not callable(getattr(runner, "execute", None)):
        raise ConfigError(f"backend {name!r} ({found[name].value}) is no Runner class")
    return runner
