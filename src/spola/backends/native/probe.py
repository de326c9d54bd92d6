"""What the native backend finds on this machine: instruction sets, memory bandwidth, peak rates."""

from __future__ import annotations

import logging
import os
import platform
import statistics
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from spola import _native
from spola.core import flags
from spola.core.dtype import BY_NAME
from spola.core.errors import CapacityError, ConfigError
from spola.load.cache import cache_folder, write_atomically

__all__ = [
    "InstructionSets",
    "instruction_sets",
    "measure_linear",
    "measure_mix",
    "measure_peak",
    "measure_read_bandwidth",
    "native_build",
    "requested_isa",
]

_LOG = logging.getLogger(__name__)
_FILE = "kernels.json"
_KEPT = 15  # results of other builds and processors


@dataclass(frozen=True, slots=True)
class InstructionSets:
    """Names of instruction sets, best first; ``chosen`` is what a model would be loaded with."""

    compiled: tuple[str, ...]
    usable: tuple[str, ...]
    chosen: str


def requested_isa() -> str:
    """The instruction set to use: ``SPOLA_ISA``, or the best whose kernels agree with their scalar twins.

    The first use on a processor compares them, in some milliseconds, and keeps the result. Raises ConfigError
    for a ``SPOLA_ISA`` that this processor cannot run, or whose kernels do not agree.
    """
    asked: str = flags.read("SPOLA_ISA")
    usable = _native.usable_isas()
    if asked and asked not in usable:
        raise ConfigError(
            f"SPOLA_ISA={asked!r}: not available on this processor, use one of {', '.join(usable)}"
        )
    for isa in [asked] if asked else usable:
        wrong = _wrong_kernel(isa)
        if not wrong:
            return isa
        if asked:
            raise ConfigError(f"SPOLA_ISA={asked!r}: kernel {wrong} gives wrong results on this processor")
        _LOG.warning("the %s kernel %s gives wrong results here; the next slower set is used", isa, wrong)
    raise ConfigError("no instruction set gives right results on this processor")


def _wrong_kernel(isa: str) -> str:
    """What ``_native.self_check`` said, now or at an earlier time on this processor with this build."""
    if isa == "scalar":
        return ""
    path = cache_folder() / _FILE
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        kept = {}
    key = f"{isa}|{native_build()}|{platform.processor() or platform.machine()}|{_cpu_model()}"
    if key not in kept:
        kept = dict(list(kept.items())[-_KEPT:]) | {key: _native.self_check(isa)}
        with suppress(OSError):  # a read-only home costs the comparison again, nothing else
            write_atomically(path, msgspec.json.encode(kept))
    return kept[key]


def native_build() -> str:
    """Names this build of the extension module, for figures and checks that hold for one build only."""
    about = os.stat(_native.__file__)
    return f"{about.st_size}.{about.st_mtime_ns}"


def _cpu_model() -> str:
    """Of the first processor: its name, or on arm64, where there is none, the numbers of maker and design."""
    try:
        with open("/proc/cpuinfo") as table:
            first = table.read().partition("\n\n")[0]
    except OSError:
        return ""
    named = ("model name", "CPU implementer", "CPU part", "CPU variant")
    return " ".join(line.partition(":")[2].strip() for line in first.splitlines() if line.startswith(named))


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


def measure_mix(dtype: str, *, precise: bool = False) -> float:
    """Multiply-adds per second of one thread on registers alone with all that the kernel of ``dtype`` does
    for each activation row, unpacking left out: the ceiling of that kernel. The best of twenty passes of a
    millisecond.
    """
    return max(_native.measure_mix(requested_isa(), BY_NAME[dtype].gguf_id, precise, 20))


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
