"""The composition root: from a model's name and options to a loaded engine.

The only module that names concrete classes of the layers below. Backends are found by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from spola.backends.registry import backend
from spola.core import flags
from spola.core.errors import ConfigError, ModelError
from spola.core.runner import Adapter, Runner, RunnerConfig, Tensor
from spola.engine.drafter import Drafter
from spola.engine.engine import Engine, Recorder
from spola.engine.limits import Limits
from spola.engine.metrics import Metrics
from spola.engine.propose import NGramProposer
from spola.engine.report import Observer
from spola.engine.scheduler import Scheduler
from spola.engine.speculate import Speculator, StepTimes
from spola.engine.suffix import SuffixProposer
from spola.load.adapter import open_adapter
from spola.load.model import Model, open_model
from spola.load.resolve import ModelPath, resolve_model
from spola.runtime.bandwidth import cached
from spola.runtime.config import DEFAULT_WINDOW_S, DraftConfig, EngineConfig, Options, parse_kv_dtype
from spola.runtime.drafting import check_same_tokens, draft_groups, load_drafter, open_draft
from spola.runtime.fair_lock import FairLock
from spola.runtime.fit import LONGEST, fit, widest_step
from spola.runtime.live import LiveView, StepBytes
from spola.runtime.loop import EngineLoop
from spola.runtime.machine import Machine, probe
from spola.runtime.needs import DraftNeeds, Shape, loading_of, memory_plan, release_memory, workspace_of
from spola.runtime.prices import step_budget
from spola.runtime.service import Service
from spola.runtime.step_log import StepLog
from spola.runtime.timeline import Timeline
from spola.runtime.weights import converter, with_weights
from spola.spec.cost import kv_bytes_per_token, position_bytes
from spola.spec.decoder import DecoderSpec
from spola.spec.kv import kv_groups
from spola.spec.weight_types import weight_type
from spola.text.chat import ChatTemplate
from spola.text.tokenizer import Tokenizer

__all__ = ["Loaded", "build_service", "load_engine", "packed_bytes", "resolve"]

STALL_S = 0.1  # a gap between two tokens that a reader would notice, where no target says otherwise


@dataclass(frozen=True)
class Loaded:
    """An engine with its model in it. ``dtypes``: canonical tensor name -> DType name; times in seconds."""

    engine: Engine
    spec: DecoderSpec
    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: Mapping[str, Any]
    dtypes: Mapping[str, str]
    config: EngineConfig
    machine: Machine
    metrics: Metrics
    timeline: Timeline | None
    live: LiveView
    steps: StepLog
    notes: tuple[str, ...]
    load_s: float


def build_service(
    model: str | None = None,
    options: Options | None = None,
    *,
    turn: FairLock | None = None,
    **extra: Any,
) -> Service:
    """Load ``model`` and start its engine thread. ``extra`` as in load_engine, ``turn`` as in EngineLoop."""
    loaded = load_engine(model, options, **extra)
    return Service(
        loop=EngineLoop(loaded.engine, turn=turn),
        spec=loaded.spec,
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        defaults=loaded.defaults,
        dtypes=loaded.dtypes,
        config=loaded.config,
        machine=loaded.machine,
        metrics=loaded.metrics,
        timeline=loaded.timeline,
        live=loaded.live,
        steps=loaded.steps,
        notes=loaded.notes,
        load_s=loaded.load_s,
    )


def load_engine(
    model: str | None = None,
    options: Options | None = None,
    *,
    runner: Runner | None = None,
    record: Recorder | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Loaded:
    """Load ``model`` (a name for ``load.resolve``) with ``options``.

    ``runner`` replaces the one ``options.backend`` names; ``record`` is the engine's. Everything that can be
    refused is refused before the weights are read: ConfigError, ModelError, CapacityError. ``progress`` is
    told the bytes of weights that were taken in, and of all.
    """
    started = time.monotonic()
    options = options or Options()
    where = resolve_model(model)
    if runner is None:
        runner = backend(options.backend)()
    timeline, drafter, helper = None, None, None
    try:
        with open_model(where) as opened, open_draft(options) as draft:
            if draft is not None:
                check_same_tokens(opened, draft)
            if options.weights is not None:
                opened = with_weights(opened, weight_type(options.weights))
            template = _template(opened, options)
            for one in (opened, *([draft] if draft is not None else [])):
                one.drop_vocabulary()
            release_memory(runner)
            machine = probe()
            adapters = _adapters(opened, options, machine, runner)
            config = resolve(opened, options, machine, runner, draft, adapters)
            timeline = None if options.trace is None else Timeline(options.trace)
            tensors = opened.tensors(converter(config.threads))
            if progress is not None:
                tensors = _counted(tensors, opened.weights_bytes, progress)
            with opened.naming():
                runner.load(opened.spec, tensors, _runner_config(config))
            for adapter in adapters:
                runner.add_adapter(adapter)
            times = StepTimes()
            if draft is not None:
                helper = backend(options.backend)()
                drafter = load_drafter(helper, runner, opened, draft, config, times)
        scheduler = Scheduler(
            Limits(
                max_step_tokens=config.max_step_tokens,
                max_seqs=config.max_seqs,
                max_model_len=config.max_model_len,
                prefix_cache=config.prefix_cache,
                batching=config.batching,
                batch_window_s=config.batch_window_s,
                reservation=config.reservation,
                key_seats=options.key_seats,
            ),
            runner.capabilities,
            config.kv_groups,
            config.kv_blocks,
            budget=step_budget(opened.spec, config, machine, runner.capabilities),
            speculator=_speculator(config.speculate, drafter, times),
            identity={"weights": config.fingerprint, "kv": ",".join(config.kv_dtypes)},
            check=bool(flags.read("SPOLA_CHECK")),
        )
    except BaseException:
        runner.close()
        if helper is not None:
            helper.close()
        if timeline is not None:
            timeline.close()
        raise
    metrics = Metrics(config.max_seqs, stall_s=config.itl_target_s or STALL_S, stats=scheduler.stats)
    step_bytes = StepBytes(
        opened.spec, opened.dtypes, config.kv_groups, config.packed_bytes - config.weights_bytes
    )
    live = LiveView(metrics, step_bytes, partial(cached, machine, config.threads))
    steps = StepLog()
    observers: list[Observer] = [metrics, live, steps]
    if timeline is not None:
        observers.append(timeline)
    return Loaded(
        engine=Engine(
            runner,
            scheduler,
            vocab=opened.spec.vocab,
            record=record,
            observers=observers,
            drafter=drafter,
        ),
        spec=opened.spec,
        tokenizer=opened.tokenizer,
        template=template,
        defaults=opened.defaults,
        dtypes=opened.dtypes,
        config=config,
        machine=machine,
        metrics=metrics,
        timeline=timeline,
        live=live,
        steps=steps,
        notes=_notes(where, opened),
        load_s=time.monotonic() - started,
    )


def resolve(
    model: Model,
    options: Options,
    machine: Machine,
    runner: Runner,
    draft: Model | None = None,
    adapters: Sequence[Adapter] = (),
) -> EngineConfig:
    """Choose what ``options`` leaves open; refuse what the backend or the machine cannot do.

    The weights and the cache of a ``draft`` model come out of the same memory, and ``adapters`` too.
    """
    caps = runner.capabilities
    for opened in (model, *([draft] if draft is not None else [])):
        for name, dtype in opened.dtypes.items():
            if caps.weight_formats and dtype not in caps.weight_formats:
                raise ModelError(
                    f"{opened.path}: tensor {name} is {dtype}, which backend {options.backend} cannot take"
                )
    if options.speculate != "off" and not caps.speculation:
        raise ConfigError(f"speculate: backend {options.backend} cannot verify drafts; use off")
    window = options.batch_window_s
    if window is None:
        window = DEFAULT_WINDOW_S if options.batching == "dynamic" else 0.0
    kv_dtypes = parse_kv_dtype(options.kv_dtype)
    for dtype in kv_dtypes:
        if dtype not in caps.kv_dtypes:
            raise ConfigError(
                f"kv_dtype {dtype!r}: backend {options.backend} has {', '.join(caps.kv_dtypes)}"
            )
    groups = kv_groups(model.spec, *kv_dtypes)
    max_seqs = min(options.max_seqs, max(caps.batch_buckets, default=options.max_seqs))
    step_tokens = min(options.max_step_tokens, caps.max_step_tokens or options.max_step_tokens)
    if not caps.static_shapes:
        longest = min(model.spec.context, options.max_model_len or LONGEST)
        step_tokens = widest_step(step_tokens, max_seqs, longest)
    packed = packed_bytes(model, runner, options.precise)
    drafts = draft_groups(draft, kv_dtypes)
    draft_packed = 0 if draft is None else packed_bytes(draft, runner, options.precise)
    adapter_bytes = sum(adapter.nbytes for adapter in adapters)
    threads, reason = machine.threads, machine.threads_reason
    if options.threads is not None:
        threads, reason = options.threads, "as asked"
    max_rank = max((adapter.rank for adapter in adapters), default=0)
    shape = Shape(step_tokens, max_seqs, threads, options.precise, max_rank)
    opened_models = [(model, groups)] + ([] if draft is None else [(draft, drafts)])
    found = fit(
        (*groups, *drafts),
        weights=packed + draft_packed + adapter_bytes,
        draft=draft_packed,
        loading=loading_of(model, runner, options.precise),
        tables=position_bytes(model.spec) + (0 if draft is None else position_bytes(draft.spec)),
        workspace=workspace_of(opened_models, runner, shape),
        trained=model.spec.context,
        machine=machine,
        max_seqs=max_seqs,
        block_size=caps.block_size,
        max_slice=caps.prefill_chunk or step_tokens,
        # With the prefix cache each has room for a step of its own: there the windows of ended texts stay.
        max_rows=None if options.prefix_cache or caps.prefill_chunk else step_tokens,
        kv_memory=options.kv_memory,
        max_model_len=options.max_model_len,
    )
    draft_blocks = found.blocks[len(groups) :]
    draft_kv = sum(
        n * group.bytes_per_token * caps.block_size for n, group in zip(draft_blocks, drafts, strict=True)
    )
    blocks = found.blocks[: len(groups)]
    needs = None
    if draft is not None:
        needs = DraftNeeds(draft, drafts, draft_blocks, min(found.max_model_len, draft.spec.context))
    memory = memory_plan(model, groups, runner, shape, blocks, found.max_model_len, adapter_bytes, needs)
    return EngineConfig(
        model=model.name,
        path=str(model.path),
        architecture=model.spec.arch,
        backend=options.backend,
        device=caps.device,
        threads=threads,
        threads_reason=reason,
        precise=options.precise,
        kv_dtypes=kv_dtypes,
        kv_groups=groups,
        kv_blocks=found.blocks[: len(groups)],
        kv_bytes=found.kv_bytes - draft_kv,
        kv_bytes_per_token=kv_bytes_per_token(groups),
        weights_bytes=model.weights_bytes,
        packed_bytes=packed,
        usable_bytes=found.usable,
        memory=memory,
        trained_context=model.spec.context,
        max_model_len=found.max_model_len,
        max_model_len_reason=found.reason,
        max_seqs=max_seqs,
        max_step_tokens=step_tokens,
        prefix_cache=options.prefix_cache,
        batching=options.batching,
        batch_window_s=window,
        reservation=options.reservation,
        fingerprint=model.fingerprint,
        adapters=tuple(adapter.name for adapter in adapters),
        adapter_bytes=adapter_bytes,
        max_lora_rank=max_rank,
        itl_target_s=options.itl_target_s,
        speculate=options.speculate,
        draft_rule=options.draft_rule,
        draft=None
        if draft is None or needs is None
        else DraftConfig(
            model=draft.name,
            path=str(draft.path),
            packed_bytes=draft_packed,
            kv_groups=drafts,
            kv_blocks=draft_blocks,
            kv_bytes=draft_kv,
            max_model_len=needs.max_model_len,
        ),
    )


def packed_bytes(model: Model, runner: Runner, precise: bool) -> int:
    """What the weights take in the backend's own layout, where it says so; else as in the file."""
    weight_bytes = getattr(runner, "weight_bytes", None)
    if weight_bytes is None:
        return model.weights_bytes
    return int(weight_bytes(model.spec, model.dtypes, precise=precise))


def _speculator(kind: str, drafter: Drafter | None, times: StepTimes) -> Speculator | None:
    if kind == "off":
        return None
    if drafter is not None:
        return Speculator(drafter, times, draft_cost=drafter.cost)
    return Speculator(NGramProposer() if kind == "ngram" else SuffixProposer(), times)


def _counted(tensors: Iterable[Tensor], total: int, progress: Callable[[int, int], None]) -> Iterator[Tensor]:
    """``tensors``; tells how far they are."""
    done = 0
    for tensor in tensors:
        yield tensor
        done += memoryview(tensor.data).nbytes
        progress(min(done, total), total)


def _runner_config(config: EngineConfig) -> RunnerConfig:
    return RunnerConfig(
        kv_groups=config.kv_groups,
        kv_blocks=config.kv_blocks,
        max_step_tokens=config.max_step_tokens,
        max_seqs=config.max_seqs,
        max_model_len=config.max_model_len,
        threads=config.threads,
        precise=config.precise,
        max_lora_rank=config.max_lora_rank,
    )


def _adapters(model: Model, options: Options, machine: Machine, runner: Runner) -> list[Adapter]:
    """The adapters asked for, read and checked against the model."""
    if options.lora and not runner.capabilities.adapters:
        raise ConfigError(f"lora: backend {options.backend} has no adapters")
    convert = converter(machine.threads)
    return [open_adapter(Path(path), name, model.spec, convert) for name, path in options.lora]


def _template(model: Model, options: Options) -> ChatTemplate | None:
    """The compiled chat template. Raises ModelError naming where it came from when it is none."""
    source, place = options.chat_template, "the chat template given"
    if source is None:
        source, place = model.template, f"{model.path} (another template can be given)"
    if source is None:
        return None
    tokenizer = model.tokenizer
    bos, eos = (
        "" if token is None else tokenizer.token_text(token) for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    try:
        template = ChatTemplate(source, bos, eos)
        if options.chat_template is None and model.tool_template is not None:
            template.with_tools = ChatTemplate(model.tool_template, bos, eos)
        return template
    except ModelError as error:
        raise ModelError(f"{place}: {error}") from None


def _notes(where: ModelPath, model: Model) -> tuple[str, ...]:
    """Lines for the person who loads the model."""
    return (where.note, *model.warnings) if where.note else model.warnings
