"""Static, dynamic and continuous batching on the same requests: what each does to throughput and to waiting.

Outputs are log-normal (median 64, sigma 1, at most 512 tokens, fixed seed). (a) All requests are there at the
start; (b) they arrive as a Poisson process at 0.7 of what continuous batching can do, found in (a). There,
*fixed* is static batching as in text-books: batches of always the same size, however long they take to fill;
*static* begins with whoever waits when the engine is empty. Writes batching.json and batching.svg, and keeps
what they hold of parts that are not measured this time. ``--backend null`` runs in virtual time, in a second.

Time is that of the steps, Python around them included; where nothing can be computed the clock jumps to what
comes next. The prediction of (a) is continuous batching simulated with the prices that the cost model has
learnt from static batching.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from spola.backends.null import NullRunner
from spola.charts import Page
from spola.core.params import SamplingParams
from spola.core.quantiles import describe
from spola.core.runner import Runner
from spola.core.step import Step, StepOutput
from spola.engine.cost_model import CostModel, work_of
from spola.engine.engine import Engine
from spola.engine.events import Summary
from spola.engine.limits import Batching, Limits
from spola.engine.metrics import Metrics
from spola.engine.report import StepReport
from spola.engine.request import Request
from spola.engine.scheduler import Scheduler
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.prices import first_prices

Mode = Literal["fixed", "static", "dynamic", "continuous"]
MODES: tuple[Batching, ...] = ("static", "dynamic", "continuous")
ARRIVING: tuple[Mode, ...] = ("fixed", *MODES)
PARTS = ("a", "b", "sizes")
MOST_TOKENS = 512
WINDOW_S = 0.2
LOAD = 0.7


@dataclass(frozen=True)
class Job:
    """``sent_s`` is when the engine hears of it: later than it arrives if it waits for a fixed batch."""

    prompt: list[int]
    tokens: int
    arrival_s: float = 0.0
    sent_s: float = 0.0


def jobs_of(count: int, prompt: int, vocab: int, seed: int) -> list[Job]:
    """``count`` requests with prompts of ``prompt`` random ids and log-normal outputs."""
    rng = random.Random(seed)
    return [
        Job(
            [rng.randrange(vocab) for _ in range(prompt)],
            max(1, min(MOST_TOKENS, round(math.exp(rng.gauss(math.log(64), 1.0))))),
        )
        for _ in range(count)
    ]


def poisson(jobs: Sequence[Job], rate: float, seed: int) -> list[Job]:
    """``jobs`` arriving at ``rate`` per second, at exponential distances."""
    rng, now, out = random.Random(seed), 0.0, []
    for job in jobs:
        now += rng.expovariate(rate)
        out.append(Job(job.prompt, job.tokens, now, now))
    return out


def in_batches(jobs: Sequence[Job], size: int) -> list[Job]:
    """``jobs`` sent ``size`` at a time, when the last of them has arrived."""
    groups = [jobs[i : i + size] for i in range(0, len(jobs), size)]
    return [replace(job, sent_s=group[-1].arrival_s) for group in groups for job in group]


class Priced(NullRunner):
    """A null backend whose steps take what a cost model says."""

    def __init__(self, model: CostModel) -> None:
        super().__init__(strict=False)
        self._model = model

    def execute(self, step: Step) -> StepOutput:
        output = super().execute(step)
        return msgspec.structs.replace(output, elapsed_s=self._model.seconds(work_of(step)))


@dataclass
class Seats:
    """An Observer that notes who computed what and when, for the chart, and teaches ``model``."""

    model: CostModel
    pieces: list[tuple[int, float, float, str]] = field(default_factory=list)
    _seats: dict[int, int] = field(default_factory=dict)

    def step(self, report: StepReport) -> None:
        if report.step is not None:
            self.model.observe(work_of(report.step), report.elapsed_s)
            for piece in report.step.slices:
                free = next(i for i in range(1, len(self._seats) + 2) if i not in self._seats.values())
                seat = self._seats.setdefault(piece.id, free)
                kind = "decode" if piece.n == 1 else "prefill"
                self.pieces.append((seat, report.start_s, report.elapsed_s, kind))
        for event in report.events:
            if event.final:
                self._seats.pop(event.id, None)

    def close(self) -> None:
        pass


@dataclass
class Run:
    """What one mode made of the requests."""

    figures: dict[str, Any]
    seats: Seats
    duration_s: float
    summaries: list[Summary]


def run(
    mode: Mode, jobs: Sequence[Job], args: argparse.Namespace, *, seats: int, runner: Runner | None = None
) -> Run:
    """All ``jobs`` with ``seats`` at a time, in ``mode``."""
    if mode == "fixed":
        return run("static", in_batches(jobs, seats), args, seats=seats, runner=runner)
    options = Options(
        backend=args.backend if runner is None else "null",
        threads=args.threads,
        max_seqs=seats,
        max_model_len=args.prompt + MOST_TOKENS + 1,
        prefix_cache=False,
    )
    loaded = load_engine(args.model, options, runner=runner)
    config = loaded.config
    limits = Limits(
        max_step_tokens=config.max_step_tokens,
        max_seqs=seats,
        max_model_len=config.max_model_len,
        prefix_cache=False,
        batching=mode,
        batch_window_s=WINDOW_S if mode == "dynamic" else 0.0,
    )
    caps = loaded.engine.runner.capabilities
    scheduler = Scheduler(limits, caps, config.kv_groups, config.kv_blocks)
    engine = Engine(loaded.engine.runner, scheduler, vocab=loaded.spec.vocab)
    virtual = config.device == "null"
    first = first_prices(
        loaded.spec,
        packed_bytes=config.packed_bytes,
        kv_bytes_per_token=config.kv_bytes_per_token,
        threads=config.threads,
    )
    metrics, chart = Metrics(seats), Seats(CostModel(first))
    engine.observers = [metrics, chart]
    waiting = sorted(enumerate(jobs), key=lambda pair: (-pair[1].sent_s, -pair[0]))
    summaries: list[Summary] = []
    now = 0.0
    try:
        while waiting or engine.has_work:
            while waiting and waiting[-1][1].sent_s <= now:
                id, job = waiting.pop()
                params = SamplingParams(temperature=0.0, max_tokens=job.tokens, ignore_eos=True)
                engine.add(Request(id=id, ids=job.prompt, params=params, arrival_s=job.arrival_s))
            before, busy = metrics.steps, metrics.busy_s
            begin = time.perf_counter()
            events = engine.step(now)
            spent = metrics.busy_s - busy if virtual else time.perf_counter() - begin
            summaries += [event.summary for event in events if event.summary is not None]
            if metrics.steps > before:
                now += spent
            elif waiting or engine.has_work:
                now = _next(now, waiting, scheduler.wake_at)
    finally:
        engine.close()
    idle = metrics.as_dict()["steps"]["idle_seats"]
    return Run(_figures(summaries, idle, now), chart, now, summaries)


def _next(now: float, waiting: Sequence[tuple[int, Job]], due: float | None) -> float:
    """When the next request arrives or a batch begins."""
    times = [waiting[-1][1].sent_s] if waiting else []
    times += [due] if due is not None else []
    return max(min(times), now + 1e-6)


def _figures(summaries: Sequence[Summary], idle: float, duration: float) -> dict[str, Any]:
    def ms(values: Sequence[float | None]) -> dict[str, float | None]:
        found = describe(value * 1e3 for value in values if value is not None)
        return {name: None if value is None else round(value, 3) for name, value in found.items()}

    output = sum(summary.n_output for summary in summaries)
    return {
        "requests": len(summaries),
        "duration_s": round(duration, 4),
        "output_tok_s": round(output / duration, 2),
        "request_s": round(len(summaries) / duration, 4),
        "queue_ms": ms([s.queue_s for s in summaries]),
        "ttft_ms": ms([s.ttft_s for s in summaries]),
        "tpot_ms": ms([s.tpot_s for s in summaries]),
        "latency_ms": ms([s.latency_s for s in summaries]),
        "idle_seats": round(idle, 4),
    }


def experiment(args: argparse.Namespace, result: dict[str, Any]) -> str | None:
    """Measure ``args.parts`` into ``result``; the drawing, once all are there."""
    jobs = jobs_of(args.requests, args.prompt, args.vocab, args.seed)
    result |= {
        "model": args.model or "smollm2",
        "backend": args.backend,
        "load_average": round(os.getloadavg()[0], 2),
        "processors": os.cpu_count(),
        "requests": args.requests,
        "prompt_tokens": args.prompt,
        "output_tokens": describe([float(job.tokens) for job in jobs]),
        "percentiles": "linear",
    }
    if "a" in args.parts:
        result["a"] = _all_at_once(jobs, args)
    if "b" in args.parts:
        result["rate"] = LOAD * result["a"]["continuous"]["request_s"]
        result["b"] = _arriving(LOAD * result["a"]["continuous"]["output_tok_s"], args)
    if "sizes" in args.parts:
        result["sizes"] = [_size(size, jobs, args) for size in args.sizes]
    if any(part not in result for part in PARTS):
        return None
    page = Page(f"Batching: {args.requests} requests, {args.batch} at a time, {result['model']}")
    _draw(page, result)
    return page.render()


def _all_at_once(jobs: Sequence[Job], args: argparse.Namespace) -> dict[str, Any]:
    """(a): modes in turn, ``args.rounds`` times; the run of each whose throughput is the median."""
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for turn in range(args.rounds):
        for mode in MODES:
            if turn and mode == "dynamic":
                continue  # with everybody there a dynamic batch is full at once, and is a static one
            runs[mode].append(run(mode, jobs, args, seats=args.batch))
            print(f"(a) {mode}: {runs[mode][-1].figures['output_tok_s']} tok/s", file=sys.stderr)
    middle = {}
    for mode, each in runs.items():
        each.sort(key=lambda one: one.duration_s)
        middle[mode] = each[len(each) // 2]
    found: dict[str, Any] = {mode: one.figures for mode, one in middle.items()}
    found["rounds"] = args.rounds
    found["spread"] = {
        mode: [one.figures["output_tok_s"] for one in reversed(each)] for mode, each in runs.items()
    }
    found["prediction"] = _prediction(middle, jobs, args)
    longest = max(middle[mode].duration_s for mode in ("static", "continuous"))
    found["seats"] = {
        mode: [[*map(_short, piece)] for piece in _joined(middle[mode].seats.pieces)]
        for mode in ("static", "continuous")
    }
    found["longest_s"] = longest
    return found


def _arriving(tok_s: float, args: argparse.Namespace) -> dict[str, Any]:
    """(b): ``args.rounds`` seeds of lengths and arrivals at ``tok_s``, modes in turn; figures over all."""
    runs: dict[str, list[Run]] = {mode: [] for mode in ARRIVING}
    for seed in range(args.seed, args.seed + args.rounds):
        jobs = jobs_of(args.requests, args.prompt, args.vocab, seed)
        arriving = poisson(jobs, tok_s * len(jobs) / sum(job.tokens for job in jobs), seed + 1)
        for mode in ARRIVING:
            runs[mode].append(run(mode, arriving, args, seats=args.batch))
            p95 = runs[mode][-1].figures["latency_ms"]["p95"]
            print(f"(b) {mode}, seed {seed}: p95 latency {p95} ms", file=sys.stderr)
    found: dict[str, Any] = {}
    for mode, each in runs.items():
        found[mode] = _figures(
            [summary for one in each for summary in one.summaries],
            sum(one.figures["idle_seats"] * one.duration_s for one in each)
            / sum(one.duration_s for one in each),
            sum(one.duration_s for one in each),
        )
        found[mode]["p95_of_seeds"] = [one.figures["latency_ms"]["p95"] for one in each]
    return found


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _size(size: int, jobs: Sequence[Job], args: argparse.Namespace) -> dict[str, Any]:
    few = [Job(job.prompt, 64) for job in jobs[: 2 * size]]
    figures = [run("continuous", few, args, seats=size).figures for _ in range(args.rounds)]
    figures.sort(key=lambda one: one["output_tok_s"])
    middle = figures[len(figures) // 2]
    return {"batch": size, "output_tok_s": middle["output_tok_s"], "tpot_ms": middle["tpot_ms"]["p50"]}


def _prediction(runs: dict[str, Run], jobs: Sequence[Job], args: argparse.Namespace) -> dict[str, float]:
    """Continuous batching as the cost model sees it, having seen static batching only."""
    simulated = run("continuous", jobs, args, seats=args.batch, runner=Priced(runs["static"].seats.model))
    speed, predicted = (r.figures["output_tok_s"] for r in (runs["continuous"], simulated))
    return {
        "output_tok_s": predicted,
        "error": round(predicted / speed - 1, 4),
        "over_static": round(speed / runs["static"].figures["output_tok_s"], 4),
    }


def _draw(page: Page, result: dict[str, Any]) -> None:
    a, b = result["a"], result["b"]
    page.bars("(a) All there at the start", MODES, [a[m]["output_tok_s"] for m in MODES], "output tokens/s")
    page.bars("(a) Idle seats", MODES, [a[m]["idle_seats"] * 100 for m in MODES], "% of seats x time")
    load = f"(b) Poisson arrivals at {LOAD} of capacity"
    page.bars(load, ARRIVING, [b[m]["latency_ms"]["p95"] / 1e3 for m in ARRIVING], "p95 latency, s")
    page.bars(load, ARRIVING, [b[m]["ttft_ms"]["p95"] / 1e3 for m in ARRIVING], "p95 time to first token, s")
    for mode in ("static", "continuous"):
        page.seats(f"(a) {mode}: who sits where", [tuple(p) for p in a["seats"][mode]], a["longest_s"])
    points = [(s["tpot_ms"], s["output_tok_s"], str(s["batch"])) for s in result["sizes"]]
    page.curve("Throughput against TPOT, by batch size", points, "TPOT, ms", "tokens/s")


def _joined(pieces: Sequence[tuple[int, float, float, str]]) -> list[tuple[int, float, float, str]]:
    """Pieces of the same kind in the same seat, one right after the other, as one."""
    out: dict[int, list[tuple[int, float, float, str]]] = {}
    for seat, start, length, kind in pieces:
        row = out.setdefault(seat, [])
        if row and row[-1][3] == kind and start - (row[-1][1] + row[-1][2]) < 0.2 * length:
            before = row.pop()
            row.append((seat, before[1], start + length - before[1], kind))
        else:
            row.append((seat, start, length, kind))
    return [piece for row in out.values() for piece in row]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", help="default: smollm2")
    parser.add_argument("-o", "--output", type=Path, default=Path("."), metavar="FOLDER")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of every prompt")
    parser.add_argument("--vocab", type=int, default=256, help="prompt ids are below this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sizes", type=lambda t: [int(n) for n in t.split(",")], default=[1, 2, 4, 8, 16, 32]
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="runs of (a) and of each size, the median of which counts; seeds of (b)",
    )
    parser.add_argument("--parts", type=lambda t: t.split(","), default=list(PARTS))
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    document = args.output / "batching.json"
    result = json.loads(document.read_text()) if document.exists() else {}
    if not set(args.parts) <= set(PARTS) or ("b" in args.parts and "a" not in (*args.parts, *result)):
        parser.error(f"parts are {', '.join(PARTS)}, and a comes before b")
    drawing = experiment(args, result)
    document.write_text(json.dumps(result) + "\n")
    if drawing is not None:
        (args.output / "batching.svg").write_text(drawing)
    print(json.dumps({"a": result["a"]["prediction"] if "a" in result else None, "rate": result.get("rate")}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
