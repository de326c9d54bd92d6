"""One memory plan for several models in a process: what each may take, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spola.backends.registry import backend
from spola.core.errors import CapacityError
from spola.load.model import open_model
from spola.load.resolve import resolve_model
from spola.runtime.build import packed_bytes
from spola.runtime.config import Options
from spola.runtime.fit import KV_SHARE, USABLE, WORKSPACE
from spola.runtime.machine import Machine, describe_bytes, probe

__all__ = ["Share", "share_memory"]

LEAST_KV = 0.1  # of what may be used, for the caches of all models together, or they are not held at once


@dataclass(frozen=True, slots=True)
class Share:
    """A model's ``options`` with its part of the memory, and the ``bytes`` that it takes once loaded."""

    model: str
    options: Options
    bytes: int


def share_memory(
    models: Sequence[str], options: Options, machine: Machine | None = None
) -> tuple[list[Share], int]:
    """What each of ``models`` may take, and the bytes there are for all that are loaded at the same time.

    If weights and caches of all fit together, each cache gets an equal part. Else each model is planned as if
    it were alone, and whoever loads one must first unload others.

    Raises CapacityError for one that does not even fit alone.
    """
    found = machine or probe()
    usable = int(min(found.memory_limit, found.memory_available) * USABLE)
    weights = [_weights(model, options) + WORKSPACE for model in models]
    left = usable - sum(weights)
    together = left >= LEAST_KV * usable
    shares = []
    for model, own in zip(models, weights, strict=True):
        if own >= usable:
            need, have = describe_bytes(own), describe_bytes(usable)
            raise CapacityError(f"{model}: the weights need {need} and this process may use {have}")
        kv = int((left / len(models) if together else usable - own) * KV_SHARE)
        if isinstance(options.kv_memory, float):
            kv = int(options.kv_memory * usable / len(models))
        elif options.kv_memory is not None:
            kv = options.kv_memory
        shares.append(Share(model, replace(options, kv_memory=kv), own + kv))
    return shares, usable


def _weights(model: str, options: Options) -> int:
    runner = backend(options.backend)()
    try:
        with open_model(resolve_model(model)) as opened:
            return packed_bytes(opened, runner, options.precise)
    finally:
        runner.close()
