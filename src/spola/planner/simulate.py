"""A workload in virtual time: the real scheduler on the null backend, with steps as ``Speed`` predicts them.

What a client would see beside a server that is this fast: the network takes no time, and the client none but
what ``token_s`` says. The document has the keys of ``bench serve``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from spola.backends.null import NullRunner
from spola.core.errors import ConfigError
from spola.core.params import SamplingParams
from spola.core.quantiles import describe
from spola.core.runner import KvGroup, RunnerConfig
from spola.core.step import Step, StepOutput
from spola.engine.cost_model import FLOOR_ROWS, CostModel, StepBudget
from spola.engine.engine import Engine
from spola.engine.events import Event, Summary
from spola.engine.limits import Limits
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.planner.speed import Speed
from spola.runtime.prices import first_prices
from spola.spec.cost import kv_bytes_per_token, weight_bytes
from spola.workload import Item, Mix, arrivals

__all__ = ["LOOP_S", "Settings", "simulate"]

_MOST_STEPS = 2_000_000
SERVER_S = 0.004  # what a request waits outside of the engine: HTTP, JSON, threads; from a server on "null"
LOOP_S = 0.0003  # processor time of a server's event loop for a token beside a model (docs/planning.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of the server that is simulated, as ``spola serve`` would choose them."""

    kv_blocks: tuple[int, ...]
    max_seqs: int
    max_model_len: int
    max_step_tokens: int = 512
    itl_target_s: float | None = 0.1
    prefix_cache: bool = True


class _Priced(NullRunner):
    """A null backend on which a step takes what is predicted, and ``token_s`` for each token it gives."""

    def __init__(self, speed: Speed, token_s: float) -> None:
        super().__init__(strict=False, script=lambda state, ids: 1)
        self._speed = speed
        self._token_s = token_s

    def execute(self, step: Step) -> StepOutput:
        tokens = sum(piece.n_head > 0 for piece in step.slices)
        elapsed_s = self._speed.step(step) + self._token_s * tokens
        return msgspec.structs.replace(super().execute(step), elapsed_s=elapsed_s)


@dataclass(slots=True)
class _Run:
    engine: Engine
    items: Sequence[Item]
    vocab: int
    seed: int
    waiting: list[tuple[float, int]] = field(default_factory=list)  # arrival and index, latest first
    summaries: dict[int, Summary] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    last: dict[int, float] = field(default_factory=dict)
    busy_s: float = 0.0

    def add_due(self, now: float) -> None:
        while self.waiting and self.waiting[-1][0] <= now:
            at, index = self.waiting.pop()
            item = self.items[index]
            params = SamplingParams(temperature=0.0, max_tokens=item.output, ignore_eos=True)
            request = Request(id=index + 1, ids=self._ids(item, index), params=params, arrival_s=at)
            self.engine.add(request)

    def _ids(self, item: Item, index: int) -> list[int]:
        shared = random.Random(f"{self.seed} group {item.group}")
        own = random.Random(f"{self.seed} item {index}")
        ids = [shared.randrange(self.vocab) for _ in range(item.shared)]
        return ids + [own.randrange(self.vocab) for _ in range(item.prompt - item.shared)]

    def take(self, events: list[Event], at: float) -> list[int]:
        """Note what came at ``at``; the indices of requests that ended."""
        ended = []
        for event in events:
            if event.ids:
                if event.id in self.last:
                    self.gaps.append(at - self.last[event.id])
                self.last[event.id] = at
            if event.summary is not None:
                if event.finish_reason == "error":
                    raise ConfigError(f"simulation: request {event.id} failed: {event.error}")
                self.summaries[event.id - 1] = event.summary
                ended.append(event.id - 1)
        return ended


def simulate(
    speed: Speed,
    groups: tuple[KvGroup, ...],
    settings: Settings,
    mix: Mix,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    server_s: float = SERVER_S,
    token_s: float = 0.0,
) -> dict[str, Any]:
    """Run ``mix`` at ``rate`` (open loop) or with ``concurrency`` clients; figures as of ``bench serve``.

    ``server_s`` is what a request waits outside of the engine. ``token_s``: how much longer a step takes for
    each of its tokens, because their way to the client takes time of a processor that computes. All of that
    time counts: it is far longer than a stage, and the other processors wait for the one that was taken.
    Raises ConfigError for a request that is longer than the server allows.
    """
    for item in mix.items:
        if item.prompt + item.output > settings.max_model_len:
            raise ConfigError(
                f"simulation: a request of {item.prompt} + {item.output} tokens exceeds the "
                f"{settings.max_model_len} that were planned: raise --context"
            )
    run = _Run(_engine(speed, groups, settings, token_s), mix.items, speed.spec.vocab, seed)
    count = len(mix.items)
    times = arrivals(count, rate, seed, burstiness) if rate is not None else [0.0] * count
    clients = count if rate is not None else min(concurrency or 1, count)
    run.waiting = [(times[i], i) for i in reversed(range(clients))]
    later = iter(range(clients, count))
    now = 0.0
    for _ in range(_MOST_STEPS):
        run.add_due(now)
        if not run.engine.has_work:
            if not run.waiting:
                break
            now = run.waiting[-1][0]
            continue
        before = now
        events, elapsed = _step(run.engine, now)
        now += elapsed
        run.busy_s += now - before
        for _ in run.take(events, now):
            following = next(later, None)
            if following is not None:
                run.waiting.insert(0, (now, following))
    else:
        raise ConfigError(f"simulation: not done after {_MOST_STEPS} steps: the rate is more than it can do")
    return _figures(run, now, server_s)


class _Clock:
    """An observer that keeps how long the last step took."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def step(self, report: Any) -> None:
        self.elapsed_s = report.elapsed_s

    def close(self) -> None:
        pass


def _step(engine: Engine, now: float) -> tuple[list[Event], float]:
    clock = engine.observers[0]
    assert isinstance(clock, _Clock)
    clock.elapsed_s = 0.0
    return engine.step(now), clock.elapsed_s


def _engine(speed: Speed, groups: tuple[KvGroup, ...], settings: Settings, token_s: float) -> Engine:
    runner = _Priced(speed, token_s)
    config = RunnerConfig(
        kv_groups=groups,
        kv_blocks=settings.kv_blocks,
        max_step_tokens=settings.max_step_tokens,
        max_seqs=settings.max_seqs,
        max_model_len=settings.max_model_len,
    )
    runner.load(speed.spec, (), config)
    budget = None
    if settings.itl_target_s is not None:
        first = first_prices(
            speed.spec,
            packed_bytes=weight_bytes(speed.spec, speed.dtypes),
            kv_bytes_per_token=kv_bytes_per_token(groups),
            threads=speed.threads,
            bytes_per_s=speed.limits.read,
        )
        budget = StepBudget(CostModel(first), settings.itl_target_s, floor=FLOOR_ROWS)
    limits = Limits(
        max_step_tokens=settings.max_step_tokens,
        max_seqs=settings.max_seqs,
        max_model_len=settings.max_model_len,
        prefix_cache=settings.prefix_cache,
    )
    scheduler = Scheduler(limits, runner.capabilities, groups, settings.kv_blocks, budget=budget)
    return Engine(runner, scheduler, vocab=speed.spec.vocab, observers=[_Clock()])


def _figures(run: _Run, end: float, server_s: float) -> dict[str, Any]:
    done = [run.summaries[i] for i in sorted(run.summaries)]
    tokens = sum(summary.n_output for summary in done)
    first = min(summary.arrival_s for summary in done)
    duration = max(end - first, 1e-9)
    ttft = [1e3 * (s.ttft_s + server_s) for s in done if s.ttft_s is not None]
    tpot = [1e3 * t for s in done if (t := s.tpot_s) is not None]
    return {
        "requests": len(run.items),
        "failed": 0,
        "duration_s": duration,
        "output_tok_s": tokens / duration,
        "total_tok_s": (tokens + sum(s.n_prompt for s in done)) / duration,
        "request_s": len(done) / duration,
        "prompt_tokens": sum(s.n_prompt for s in done),
        "output_tokens": tokens,
        "cached_tokens": sum(s.n_cached for s in done),
        "preemptions": sum(s.preemptions for s in done),
        "busy": run.busy_s / duration,
        "mean_concurrency": math.fsum(s.latency_s for s in done) / duration,
        "ttft_ms": describe(ttft),
        "tpot_ms": describe(tpot),
        "itl_ms": describe(1e3 * gap for gap in run.gaps),
        "latency_ms": describe(1e3 * (s.latency_s + server_s) for s in done),
    }
