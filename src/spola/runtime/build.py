"""The composition root: from a model's name and options to a loaded engine.

The only module that names concrete classes of the layers below. Backends are found by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
from spola.runtime.config import EngineConfig, Options
from spola.runtime.drafting import check_same_tokens, load_drafter, open_draft
from spola.runtime.fair_lock import FairLock
from spola.runtime.live import LiveView, StepBytes
from spola.runtime.loaded import Loaded
from spola.runtime.loop import EngineLoop
from spola.runtime.machine import Machine, probe
from spola.runtime.needs import release_memory
from spola.runtime.prices import step_budget
from spola.runtime.resolve import resolve
from spola.runtime.service import Service
from spola.runtime.step_log import StepLog
from spola.runtime.timeline import Timeline
from spola.runtime.weights import converter, with_weights
from spola.spec.decoder import DecoderSpec
from spola.spec.weight_types import weight_type
from spola.text.chat import ChatTemplate

__all__ = ["build_service", "load_engine"]

STALL_S = 0.1  # a gap between two tokens that a reader would notice, where no target says otherwise


def build_service(
    model: str | None = None,
    options: Options | None = None,
    *,
    turn: FairLock | None = None,
    **extra: Any,
) -> Service:
    """Load ``model`` and start its engine thread. ``extra`` as in load_engine, ``turn`` as in EngineLoop."""
    loaded = load_engine(model, options, **extra)
    return Service(EngineLoop(loaded.engine, turn=turn), loaded)


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
            opened.drop_vocabulary()
            if draft is not None:
                draft.drop_vocabulary()
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
        scheduler = _scheduler(opened.spec, config, options, machine, runner, drafter, times)
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


def _scheduler(
    spec: DecoderSpec,
    config: EngineConfig,
    options: Options,
    machine: Machine,
    runner: Runner,
    drafter: Drafter | None,
    times: StepTimes,
) -> Scheduler:
    limits = Limits(
        max_step_tokens=config.max_step_tokens,
        max_seqs=config.max_seqs,
        max_model_len=config.max_model_len,
        prefix_cache=config.prefix_cache,
        batching=config.batching,
        batch_window_s=config.batch_window_s,
        reservation=config.reservation,
        key_seats=options.key_seats,
    )
    return Scheduler(
        limits,
        runner.capabilities,
        config.kv_groups,
        config.kv_blocks,
        budget=step_budget(spec, config, machine, runner.capabilities),
        speculator=_speculator(config.speculate, drafter, times),
        identity={"weights": config.fingerprint, "kv": ",".join(config.kv_dtypes)},
        check=bool(flags.read("SPOLA_CHECK")),
    )


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
