"""What a step costs before any has run: from the model's size and what is known of this machine.

Nothing is measured here. A kept bandwidth is used; what is not known is taken low, so that the first steps
are too short rather than too long, and the cost model learns the rest from the steps that run.
"""

from __future__ import annotations

from spola.core.runner import Capabilities
from spola.engine.cost_model import FLOOR_ROWS, CostModel, Prices, StepBudget
from spola.runtime.bandwidth import cached
from spola.runtime.config import EngineConfig
from spola.runtime.machine import Machine
from spola.spec.cost import attention_flops, matmul_parameters
from spola.spec.decoder import DecoderSpec

__all__ = ["first_prices", "step_budget"]

BYTES_PER_S = 8e9  # a small machine's memory
OPS_PER_S = 4e10  # one thread's integer multiplies and adds in the linear layers
FLOPS_PER_S = 1e10  # one thread's floating-point operations in attention


def first_prices(
    spec: DecoderSpec,
    *,
    packed_bytes: int,
    kv_bytes_per_token: int,
    threads: int,
    bytes_per_s: float | None = None,
    ops_per_s: float = OPS_PER_S,
) -> Prices:
    """Prices of a step of ``spec``: weights streamed once, 2 operations per parameter and row, and per pair
    the slower of reading its K and V and of its attention arithmetic. Rates are per second; operations per
    thread.
    """
    rate = bytes_per_s or BYTES_PER_S
    pair_flops = attention_flops(spec, 1)
    return Prices(
        fixed_s=packed_bytes / rate,
        row_s=2 * matmul_parameters(spec) / (ops_per_s * threads),
        head_s=2 * spec.hidden * spec.vocab / (ops_per_s * threads),
        pair_s=max(kv_bytes_per_token / rate, pair_flops / (FLOPS_PER_S * threads)),
    )


def step_budget(
    spec: DecoderSpec, config: EngineConfig, machine: Machine, caps: Capabilities
) -> StepBudget | None:
    """The budget that ``config.itl_target_s`` asks for, if any."""
    if config.itl_target_s is None:
        return None
    first = first_prices(
        spec,
        packed_bytes=config.packed_bytes,
        kv_bytes_per_token=config.kv_bytes_per_token,
        threads=config.threads,
        bytes_per_s=cached(machine, config.threads),
    )
    floor = max(FLOOR_ROWS, caps.prefill_chunk or 0)
    return StepBudget(CostModel(first), config.itl_target_s, floor=floor)
