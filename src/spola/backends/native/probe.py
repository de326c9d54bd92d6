"""What the native backend finds on this machine: instruction sets, memory bandwidth, peak rates."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from spola import _native
from spola.core import flags
from spola.core.dtype import BY_NAME
from spola.core.errors import CapacityError, ConfigError

__all__ = [
    "InstructionSets",
    "instruction_sets",
    "measure_linear",
    "measure_peak",
    "measure_read_bandwidth",
    "requested_isa",
]


@dataclass(frozen=True, slots=True)
class InstructionSets:
    """Names of instruction sets, best first; ``chosen`` is what a model would be loaded with."""

    compiled: tuple[str, ...]
    usable: tuple[str, ...]
    chosen: str


def requested_isa() -> str:
    """``SPOLA_ISA``, or "" for the best. Raises ConfigError when this processor cannot run it."""
    isa: str = flags.read("SPOLA_ISA")
    try:
        _native.chosen_isa(isa)
    except ValueError:
        usable = ", ".join(_native.usable_isas())
        raise ConfigError(
            f"SPOLA_ISA={isa!r}: not available on this processor, use one of {usable}"
        ) from None
    return isa


def instruction_sets() -> InstructionSets:
    """Raises ConfigError for a ``SPOLA_ISA`` that cannot be obeyed."""
    chosen = _native.chosen_isa(requested_isa())
    return InstructionSets(tuple(_native.compiled_isas()), tuple(_native.usable_isas()), chosen)


def measure_read_bandwidth(size: int, threads: int, passes: int = 5) -> float:
    """Bytes per second that ``threads`` threads read from a buffer of ``size`` bytes: the median pass.

    Use a buffer far larger than the caches. Raises CapacityError when there is no memory for it.
    """
    try:
        rates = _native.measure_read_bandwidth(size, threads, passes, flags.read("SPOLA_HUGE_PAGES"))
    except MemoryError:
        raise CapacityError(f"no memory for a buffer of {size} bytes to measure bandwidth with") from None
    return statistics.median(rates)


def measure_peak(kind: str, threads: int) -> float:
    """Multiply-adds per second of ``threads`` threads on registers alone; ``kind`` f32, a8 or a16.

    The best of twenty passes of a millisecond: a ceiling, whatever else runs.
    """
    return max(_native.measure_peak(requested_isa(), kind, threads, 20))


def measure_linear(
    dtype: str, rows: int, columns: int, m: int, passes: int, *, precise: bool = False
) -> tuple[str, int, list[float]]:
    """One thread's passes over a ``rows`` x ``columns`` matrix of ``dtype`` times ``m`` activation rows.

    Returns the activation format, the bytes of the packed weights and the seconds of each pass. Raises
    ConfigError on sizes that the type cannot have.
    """
    try:
        return _native.measure_linear(
            requested_isa(), BY_NAME[dtype].gguf_id, precise, rows, columns, m, passes
        )
    except ValueError as error:
        raise ConfigError(f"{dtype}, {rows} x {columns}, {m} rows: {error}") from None
