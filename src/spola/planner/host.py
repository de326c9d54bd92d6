"""The machine to plan for: this one with measured figures, or a row of the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spola.core.runner import KvGroup
from spola.planner.hardware import find_hardware
from spola.planner.model import PlanModel
from spola.planner.overhead import measure_overhead
from spola.planner.plan import Host
from spola.planner.speed import Speed
from spola.planner.trial import Trial
from spola.planner.tried import try_model
from spola.runtime.fit import USABLE
from spola.runtime.limits import KernelRates, MachineLimits, Say, known_limits
from spola.runtime.machine import Machine, probe

__all__ = ["Here", "measure_here", "table_host", "this_host"]


def table_host(name: str, memory: int | None = None) -> Host:
    """A machine of the table. ``memory`` bytes replace what the row says. Raises ConfigError."""
    row = find_hardware(name)
    held = row.memory if memory is None else memory
    usable = None if held is None else int(held * USABLE)
    return Host(row.name, usable, f"{USABLE:.0%} of the memory of {row.name}", hardware=row)


@dataclass(frozen=True, slots=True)
class Here:
    """What was measured of this machine with ``threads`` threads, for the weight types asked for."""

    machine: Machine
    threads: int
    limits: MachineLimits
    rates: KernelRates
    overhead_s: float
    request_s: float

    def host(
        self,
        model: PlanModel,
        groups: tuple[KvGroup, ...],
        *,
        precise: bool = False,
        memory: int | None = None,
        trial: Trial | None = None,
    ) -> Host:
        """This machine as the host of ``model``, of which there may be a ``trial``. ``memory`` bytes replace
        what this process may use.
        """
        machine, limits = self.machine, self.limits
        free = min(machine.memory_limit, machine.memory_available)
        speed = Speed(
            model.spec,
            model.dtypes,
            groups,
            limits,
            self.rates,
            self.threads,
            self.overhead_s,
            self.request_s,
            precise,
            trial,
        )
        return Host(
            name=f"{machine.cpu_model}, {self.threads} threads, {limits.isa}",
            memory=int((free if memory is None else memory) * USABLE),
            memory_reason=_reason(machine) if memory is None else f"{USABLE:.0%} of what --memory says",
            threads=self.threads,
            machine=machine,
            limits=limits,
            speed=speed,
        )


def measure_here(
    types: Iterable[str],
    *,
    threads: int | None = None,
    precise: bool = False,
    fresh: bool = False,
    say: Say = lambda _: None,
) -> Here:
    """This machine, for weights in ``types``. Its figures are kept between calls; ``fresh`` measures anew,
    which takes seconds, as ``say`` is told. Raises ConfigError without the native backend, CapacityError
    without memory for it.
    """
    machine = probe()
    count = threads or machine.threads
    limits, rates = known_limits(machine, count, sorted(set(types)), precise=precise, fresh=fresh, say=say)
    return Here(machine, count, limits, rates, *measure_overhead())


def this_host(
    model: PlanModel,
    groups: tuple[KvGroup, ...],
    *,
    threads: int | None = None,
    precise: bool = False,
    fresh: bool = False,
    memory: int | None = None,
    say: Say = lambda _: None,
) -> Host:
    """This machine as ``measure_here`` finds it, and as a trial of ``model`` does. Raises as the former."""
    here = measure_here(model.dtypes.values(), threads=threads, precise=precise, fresh=fresh, say=say)
    trial = try_model(model, groups, here.machine, here.threads, precise=precise, fresh=fresh, say=say)
    return here.host(model, groups, precise=precise, memory=memory, trial=trial)


def _reason(machine: Machine) -> str:
    if machine.memory_available < machine.memory_limit:
        return f"{USABLE:.0%} of what is free"
    return f"{USABLE:.0%} of the {machine.memory_limit_reason}"
