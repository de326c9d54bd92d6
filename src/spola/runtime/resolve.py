"""Options -> EngineConfig: what a person left open is chosen, what backend or machine cannot do is refused.

Reads the headers of the models and what the backend tells of itself; loads and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spola.core.errors import ConfigError, ModelError
from spola.core.runner import Adapter, Capabilities, KvGroup, Runner
from spola.load.model import Model
from spola.runtime.config import DEFAULT_WINDOW_S, DraftConfig, EngineConfig, Options, parse_kv_dtype
from spola.runtime.fit import LONGEST, Fit, fit, widest_step
from spola.runtime.machine import Machine
from spola.runtime.needs import DraftNeeds, Shape, loading_of, memory_plan, packed_bytes, workspace_of
from spola.spec.cost import kv_bytes_per_token, position_bytes
from spola.spec.kv import kv_groups

__all__ = ["resolve"]


@dataclass(frozen=True, slots=True)
class _Part:
    """One model of an engine, and what it needs."""

    model: Model
    groups: tuple[KvGroup, ...]
    packed: int  # bytes


def resolve(
    model: Model,
    options: Options,
    machine: Machine,
    runner: Runner,
    draft: Model | None = None,
    adapters: Sequence[Adapter] = (),
) -> EngineConfig:
    """Choose what ``options`` leaves open. Raises ConfigError, ModelError or CapacityError.

    The weights and the cache of a ``draft`` model come out of the same memory, and ``adapters`` too.
    """
    caps = runner.capabilities
    models = (model,) if draft is None else (model, draft)
    kv_dtypes = parse_kv_dtype(options.kv_dtype)
    _check(models, options, kv_dtypes, caps)
    window = options.batch_window_s
    if window is None:
        window = DEFAULT_WINDOW_S if options.batching == "dynamic" else 0.0
    parts = [
        _Part(one, kv_groups(one.spec, *kv_dtypes), packed_bytes(one, runner, options.precise))
        for one in models
    ]
    groups = parts[0].groups
    shape = _shape(model, options, machine, caps, adapters)
    adapter_bytes = sum(adapter.nbytes for adapter in adapters)
    found = _fit(parts, adapter_bytes, options, machine, runner, shape)
    blocks, draft_blocks = found.blocks[: len(groups)], found.blocks[len(groups) :]
    helper = None if draft is None else _draft_config(parts[1], draft_blocks, found.max_model_len, caps)
    needs = None
    if draft is not None and helper is not None:
        needs = DraftNeeds(draft, helper.kv_groups, draft_blocks, helper.max_model_len)
    return EngineConfig(
        model=model.name,
        path=str(model.path),
        architecture=model.spec.arch,
        backend=options.backend,
        device=caps.device,
        threads=shape.threads,
        threads_reason=machine.threads_reason if options.threads is None else "as asked",
        precise=options.precise,
        kv_dtypes=kv_dtypes,
        kv_groups=groups,
        kv_blocks=blocks,
        kv_bytes=found.kv_bytes - (0 if helper is None else helper.kv_bytes),
        kv_bytes_per_token=kv_bytes_per_token(groups),
        weights_bytes=model.weights_bytes,
        packed_bytes=parts[0].packed,
        usable_bytes=found.usable,
        memory=memory_plan(model, groups, runner, shape, blocks, found.max_model_len, adapter_bytes, needs),
        trained_context=model.spec.context,
        max_model_len=found.max_model_len,
        max_model_len_reason=found.reason,
        max_seqs=shape.max_seqs,
        max_step_tokens=shape.step_tokens,
        prefix_cache=options.prefix_cache,
        batching=options.batching,
        batch_window_s=window,
        reservation=options.reservation,
        fingerprint=model.fingerprint,
        adapters=tuple(adapter.name for adapter in adapters),
        adapter_bytes=adapter_bytes,
        max_lora_rank=shape.max_lora_rank,
        itl_target_s=options.itl_target_s,
        speculate=options.speculate,
        draft_rule=options.draft_rule,
        draft=helper,
    )


def _check(models: Sequence[Model], options: Options, kv_dtypes: Sequence[str], caps: Capabilities) -> None:
    """Refuse what the backend cannot do."""
    for model in models:
        for name, dtype in model.dtypes.items():
            if caps.weight_formats and dtype not in caps.weight_formats:
                raise ModelError(
                    f"{model.path}: tensor {name} is {dtype}, which backend {options.backend} cannot take"
                )
    if options.speculate != "off" and not caps.speculation:
        raise ConfigError(f"speculate: backend {options.backend} cannot verify drafts; use off")
    for dtype in kv_dtypes:
        if dtype not in caps.kv_dtypes:
            raise ConfigError(
                f"kv_dtype {dtype!r}: backend {options.backend} has {', '.join(caps.kv_dtypes)}"
            )


def _shape(
    model: Model, options: Options, machine: Machine, caps: Capabilities, adapters: Sequence[Adapter]
) -> Shape:
    max_seqs = min(options.max_seqs, max(caps.batch_buckets, default=options.max_seqs))
    step_tokens = min(options.max_step_tokens, caps.max_step_tokens or options.max_step_tokens)
    if not caps.static_shapes:
        longest = min(model.spec.context, options.max_model_len or LONGEST)
        step_tokens = widest_step(step_tokens, max_seqs, longest)
    threads = machine.threads if options.threads is None else options.threads
    max_rank = max((adapter.rank for adapter in adapters), default=0)
    return Shape(step_tokens, max_seqs, threads, options.precise, max_rank)


def _fit(
    parts: Sequence[_Part],
    adapter_bytes: int,
    options: Options,
    machine: Machine,
    runner: Runner,
    shape: Shape,
) -> Fit:
    """What fits, for the KV groups of all ``parts`` in their order."""
    caps, model = runner.capabilities, parts[0].model
    return fit(
        [group for part in parts for group in part.groups],
        weights=sum(part.packed for part in parts) + adapter_bytes,
        draft=sum(part.packed for part in parts[1:]),
        loading=loading_of(model, runner, options.precise),
        tables=sum(position_bytes(part.model.spec) for part in parts),
        workspace=workspace_of([(part.model, part.groups) for part in parts], runner, shape),
        trained=model.spec.context,
        machine=machine,
        max_seqs=shape.max_seqs,
        block_size=caps.block_size,
        max_slice=caps.prefill_chunk or shape.step_tokens,
        # With the prefix cache each has room for a step of its own: there the windows of ended texts stay.
        max_rows=None if options.prefix_cache or caps.prefill_chunk else shape.step_tokens,
        kv_memory=options.kv_memory,
        max_model_len=options.max_model_len,
    )


def _draft_config(
    part: _Part, blocks: tuple[int, ...], max_model_len: int, caps: Capabilities
) -> DraftConfig:
    per_block = [group.bytes_per_token * caps.block_size for group in part.groups]
    return DraftConfig(
        model=part.model.name,
        path=str(part.model.path),
        packed_bytes=part.packed,
        kv_groups=part.groups,
        kv_blocks=blocks,
        kv_bytes=sum(n * size for n, size in zip(blocks, per_block, strict=True)),
        max_model_len=min(max_model_len, part.model.spec.context),
    )
