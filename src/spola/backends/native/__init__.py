"""The native backend: C++ kernels chosen for this processor, one call per step, invariant output."""

from spola.backends.native.probe import (
    InstructionSets,
    instruction_sets,
    measure_linear,
    measure_mix,
    measure_peak,
    measure_read_bandwidth,
    native_build,
)
from spola.backends.native.runner import NativeRunner

__all__ = [
    "InstructionSets",
    "NativeRunner",
    "instruction_sets",
    "measure_linear",
    "measure_mix",
    "measure_peak",
    "measure_read_bandwidth",
    "native_build",
]
