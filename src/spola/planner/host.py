"""The machine to plan for: this one with measured figures, or a row of the table."""

from __future__ import annotations

from spola.core.runner import KvGroup
from spola.planner.hardware import find_hardware
from spola.planner.model import PlanModel
from spola.planner.overhead import measure_overhead
from spola.planner.plan import Host
from spola.planner.speed import Speed
from spola.runtime.fit import USABLE
from spola.runtime.limits import known_limits
from spola.runtime.machine import Machine, probe

__all__ = ["table_host", "this_host"]


def table_host(name: str, memory: int | None = None) -> Host:
    """A machine of the table. ``memory`` bytes replace what the row says. Raises ConfigError."""
    row = find_hardware(name)
    held = row.memory if memory is None else memory
    usable = None if held is None else int(held * USABLE)
    return Host(row.name, usable, f"{USABLE:.0%} of the memory of {row.name}", hardware=row)


def this_host(
    model: PlanModel,
    groups: tuple[KvGroup, ...],
    *,
    threads: int | None = None,
    precise: bool = False,
    fresh: bool = False,
    memory: int | None = None,
) -> Host:
    """This machine. Its figures are kept between calls; ``fresh`` measures them anew, which takes seconds.

    ``memory`` bytes replace what this process may use. Raises ConfigError without the native backend.
    """
    machine = probe()
    count = threads or machine.threads
    types = sorted(set(model.dtypes.values()))
    limits, rates = known_limits(machine, count, types, precise=precise, fresh=fresh)
    overhead, each = measure_overhead()
    speed = Speed(model.spec, model.dtypes, groups, limits, rates, count, overhead, each, precise)
    free = min(machine.memory_limit, machine.memory_available)
    return Host(
        name=f"{machine.cpu_model}, {count} threads, {limits.isa}",
        memory=int((free if memory is None else memory) * USABLE),
        memory_reason=_reason(machine) if memory is None else f"{USABLE:.0%} of what --memory says",
        threads=count,
        machine=machine,
        limits=limits,
        speed=speed,
    )


def _reason(machine: Machine) -> str:
    if machine.memory_available < machine.memory_limit:
        return f"{USABLE:.0%} of what is free"
    return f"{USABLE:.0%} of the {machine.memory_limit_reason}"
