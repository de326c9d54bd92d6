"""When requests arrive: an open loop, whose times do not depend on how fast anything answers."""

from __future__ import annotations

import math
import random

from spola.core.errors import ConfigError

__all__ = ["arrivals"]


def arrivals(count: int, rate: float, seed: int = 0, burstiness: float = 1.0) -> list[float]:
    """Seconds from the start at which each of ``count`` requests arrives, ``rate`` per second on average.

    Distances are Gamma(shape ``burstiness``, mean 1 / rate): 1 is a Poisson process, less is more bursty,
    more is more even. They are scaled so that the last request comes at (count - 1) / rate: short runs offer
    the rate that was asked for. The first arrives at 0. An infinite rate: all at once. Raises ConfigError.
    """
    if not rate > 0:
        raise ConfigError(f"rate must be above 0 requests per second, not {rate}")
    if not (burstiness > 0 and math.isfinite(burstiness)):
        raise ConfigError(f"burstiness must be above 0, not {burstiness}")
    if math.isinf(rate) or count < 2:
        return [0.0] * count
    rng = random.Random(f"arrivals {seed}")
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + rng.gammavariate(burstiness, 1.0))
    scale = (count - 1) / rate / times[-1] if times[-1] > 0 else 0.0
    return [time * scale for time in times]
