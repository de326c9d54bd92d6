"""The checks behind ``spola doctor``: each looks at one thing and gives figures and findings.

A problem keeps spola from working and comes with its remedy; an advice costs speed or surprises. Prints
nothing.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from spola import __version__
from spola.backends.registry import backend, names
from spola.core import flags
from spola.core.errors import SpolaError
from spola.load.cache import cache_folder
from spola.load.resolve import models_found
from spola.runtime.bandwidth import MIN_BUFFER, PASSES, measure
from spola.runtime.machine import Machine, describe_bytes, probe

__all__ = ["Checkup", "check_all"]

NATIVE = "native"
LITTLE_MEMORY = 512 << 20
LIBRARIES = ("tokenizers", "msgspec", "starlette", "uvicorn", "httptools", "jinja2", "llguidance", "click")


@dataclass(slots=True)
class Checkup:
    """``facts`` by section; ``problems`` and ``advice`` are pairs of what is wrong and what to do."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    advice: list[tuple[str, str]] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems


def check_all(*, bandwidth: bool = True) -> Checkup:
    """Run every check. ``bandwidth`` False leaves the one out that takes a second."""
    found = Checkup()
    machine = probe()
    checks: list[Callable[[Checkup, Machine], None]] = [_versions, _backends, _processors, _memory]
    if bandwidth:
        checks.append(_bandwidth)
    checks += [_models, _environment]
    for check in checks:
        check(found, machine)
    return found


def _versions(found: Checkup, machine: Machine) -> None:
    libraries: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = None
            found.problems.append((f"the package {name} is missing", "reinstall spola: pip install ."))
    found.facts["versions"] = {
        "spola": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **libraries,
    }


def _backends(found: Checkup, machine: Machine) -> None:
    facts: dict[str, Any] = {}
    for name in names():
        try:
            kind = backend(name)
            facts[name] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
            if name == NATIVE:
                facts[name] |= _instruction_sets(found)
        except SpolaError as error:
            facts[name] = {"error": str(error)}
            if name == NATIVE:
                remedy = "build it: pip install . in the source folder, with a C++20 compiler"
                found.problems.append((f"the native backend cannot be used: {error}", remedy))
    found.facts["backends"] = facts


def _instruction_sets(found: Checkup) -> dict[str, Any]:
    """What the native kernels were compiled for, what this processor runs, and what is chosen."""
    from spola.backends.native import instruction_sets

    try:
        sets = instruction_sets()
    except SpolaError as error:
        found.problems.append((str(error), "unset SPOLA_ISA; see spola flags"))
        return {}
    return {"compiled": sets.compiled, "usable": sets.usable, "chosen": sets.chosen}


def _processors(found: Checkup, machine: Machine) -> None:
    found.facts["processors"] = {
        "model": machine.cpu_model,
        "allowed": machine.cpus,
        "cores": machine.cores,
        "quota": machine.quota,
        "threads": machine.threads,
        "threads_reason": machine.threads_reason,
    }
    if machine.quota is not None and machine.quota < 1:
        what = f"the control group allows {machine.quota:.2f} processors"
        found.advice.append((what, "every answer will pause; raise the quota to one processor or more"))


def _memory(found: Checkup, machine: Machine) -> None:
    found.facts["memory"] = {
        "total_bytes": machine.memory_total,
        "limit_bytes": machine.memory_limit,
        "limit_reason": machine.memory_limit_reason,
        "available_bytes": machine.memory_available,
        "huge_pages": machine.huge_pages,
    }
    if machine.memory_available < LITTLE_MEMORY:
        what = f"only {describe_bytes(machine.memory_available)} of memory are free"
        found.problems.append(
            (what, "end other programs or raise the limit; the smallest model needs 0.5 GB")
        )
    if machine.huge_pages == "never":
        what = "huge pages are switched off: reading the weights costs more"
        remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        found.advice.append((what, remedy))


def _bandwidth(found: Checkup, machine: Machine) -> None:
    if machine.memory_available < 2 * MIN_BUFFER:
        found.facts["bandwidth"] = None
        return
    rate = measure(MIN_BUFFER, machine.threads, PASSES)
    load = os.getloadavg()[0]
    if rate is None:
        found.facts["bandwidth"] = None
        return
    found.facts["bandwidth"] = {"read_gb_s": rate / 1e9, "threads": machine.threads, "load": load}
    if load > machine.cpus:
        what = f"the machine is busy (load {load:.1f} on {machine.cpus} processors)"
        found.advice.append((what, "figures of speed are too low now; measure again on an idle machine"))


def _models(found: Checkup, machine: Machine) -> None:
    models = models_found()
    found.facts["models"] = [{"name": m.name, "path": str(m.path)} for m in models]
    if not models:
        found.problems.append(("no model is on this machine", "spola pull smollm2, or pass -m FILE.gguf"))


def _environment(found: Checkup, machine: Machine) -> None:
    told = [what for what, _ in found.problems]
    for name in flags.FLAGS:
        try:
            flags.read(name)
        except SpolaError as error:
            if str(error) not in told:
                found.problems.append((str(error), f"unset {name}; see spola flags"))
    for name in flags.unknown():
        found.advice.append((f"{name} is set and means nothing", "see spola flags for the names"))
    folder = cache_folder()
    parent = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    if not os.access(parent, os.W_OK):
        found.advice.append((f"the cache folder {folder} cannot be written", "set XDG_CACHE_HOME"))
    if sys.platform not in ("linux", "darwin"):
        found.problems.append((f"{sys.platform} is not supported", "on Windows, use WSL"))
