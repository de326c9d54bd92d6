"""One memory plan for several models in a process: what each may take, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spola.backends.registry import backend
from spola.core.errors import CapacityError
from spola.load.model import open_model
from spola.load.resolve import resolve_model
from spola.runtime.config import Options, parse_kv_dtype
from spola.runtime.drafting import open_draft
from spola.runtime.fit import KV_SHARE, LONGEST, USABLE, widest_step
from spola.runtime.machine import Machine, describe_bytes, probe
from spola.runtime.needs import Shape, packed_bytes, workspace_of
from spola.runtime.weights import with_weights
from spola.spec.kv import kv_groups
from spola.spec.weight_types import weight_type

__all__ = ["Share", "plan_of_all", "share_memory"]

LEAST_KV = 0.1  # of what may be used, for the caches of all models together, or they are not held at once


@dataclass(frozen=True, slots=True)
class Share:
    """A model's ``options`` with its part of the memory; ``bytes`` that it takes once loaded, ``kv`` of them
    for its cache.
    """

    model: str
    options: Options
    bytes: int
    kv: int


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
    weights = [_needs(model, options, found) for model in models]
    left = usable - sum(weights)
    together = left >= LEAST_KV * usable
    shares = []
    for model, own in zip(models, weights, strict=True):
        if own >= usable:
            more = describe_bytes(own / USABLE * 1.1)
            raise CapacityError(
                f"{model}: the weights need {describe_bytes(own)} with their workspace, and this process "
                f"may use {describe_bytes(usable)} ({found.memory_limit_reason}). Three ways out: let it use "
                f"{more}; "
                "smaller weights (--weights); or serve without this model"
            )
        kv = int((left / len(models) if together else usable - own) * KV_SHARE)
        if isinstance(options.kv_memory, float):
            kv = int(options.kv_memory * usable / len(models))
        elif options.kv_memory is not None:
            kv = options.kv_memory
        if own + kv > usable:
            all_of_it = describe_bytes((own + kv) / USABLE)
            raise CapacityError(
                f"{model}: weights and workspace of {describe_bytes(own)} and a KV cache of "
                f"{describe_bytes(kv)} are more than the {describe_bytes(usable)} this process may use. "
                f"Three ways out: --kv-memory {usable - own} or less; smaller weights (--weights); or "
                f"{all_of_it} of memory"
            )
        shares.append(Share(model, replace(options, kv_memory=kv), own + kv, kv))
    return shares, usable


def plan_of_all(names: Sequence[str], shares: Sequence[Share], usable: int) -> str:
    """One line: what each model takes once loaded, in all, and whether all are held at once."""
    parts = [
        f"{name} {describe_bytes(share.bytes)} (KV cache {describe_bytes(share.kv)})"
        for name, share in zip(names, shares, strict=True)
    ]
    total = sum(share.bytes for share in shares)
    held = "all are held at once"
    if total > usable:
        held = "more than there is, so idle models are unloaded for those that are asked for"
    return (
        f"plan of all {len(parts)} models: {describe_bytes(total)} = {' + '.join(parts)}; "
        f"{describe_bytes(usable)} may be used: {held}"
    )


def _needs(model: str, options: Options, machine: Machine) -> int:
    """Bytes of weights, draft model and workspace."""
    runner = backend(options.backend)()
    kinds = parse_kv_dtype(options.kv_dtype)
    try:
        with open_model(resolve_model(model)) as opened, open_draft(options) as draft:
            if options.weights is not None:
                opened = with_weights(opened, weight_type(options.weights))
            models = [opened] if draft is None else [opened, draft]
            longest = min(opened.spec.context, options.max_model_len or LONGEST)
            shape = Shape(
                widest_step(options.max_step_tokens, options.max_seqs, longest),
                options.max_seqs,
                options.threads or machine.threads,
                options.precise,
            )
            groups = [(one, kv_groups(one.spec, *kinds)) for one in models]
            packed = sum(packed_bytes(one, runner, options.precise) for one in models)
            return packed + workspace_of(groups, runner, shape)
    finally:
        runner.close()
