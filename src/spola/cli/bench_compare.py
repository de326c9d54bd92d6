"""``spola bench compare`` and ``spola bench report``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from spola.bench.compare import OFFLINE, SERVE, interleave, ratios
from spola.bench.figures import figures
from spola.bench.offline import Offline, Plan
from spola.bench.report import read_result, report_html, report_svg
from spola.cli.bench_serve import load_options, read_mix, run_load
from spola.cli.options import engine_options, model_option, read_options
from spola.cli.output import emit_json, json_option, note
from spola.core.errors import ConfigError
from spola.runtime.build import load_engine
from spola.runtime.limits import bench_lock, measure_limits
from spola.workload import Mix

__all__ = ["compare", "report"]

_Measure = Callable[[], Mapping[str, float]]


@click.command("side")
@model_option
@engine_options
def _side(**given: Any) -> None:
    """The options of one configuration."""


@click.command(
    "compare",
    epilog='Examples: spola bench compare a.gguf "b.gguf --threads 1"; '
    "spola bench compare http://127.0.0.1:8000 http://127.0.0.1:8001 --concurrency 4",
)
@click.argument("a")
@click.argument("b")
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option(
    "-n",
    "--tokens",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Decode steps (configurations).",
)
@click.option(
    "-b",
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Requests at a time (configurations).",
)
@load_options
@json_option
def compare(a: str, b: str, repeat: int, tokens: int, batch: int, as_json: bool, **given: Any) -> int:
    """Compare A and B, measured in turns: ratios of the same round, their median and their spread.

    A and B are two servers (URLs), loaded as by bench serve, or two configurations: a model and engine
    options, in quotes, measured as by bench offline, both loaded at once. A difference is claimed only when
    it is the same way in every round.
    """
    urls = [side.startswith(("http://", "https://")) for side in (a, b)]
    if any(urls) and not all(urls):
        raise click.UsageError("A and B must both be URLs, or both options of a configuration")
    with bench_lock(note) as load, ExitStack() as stack:
        if all(urls):
            mixed = read_mix(given)
            better = SERVE
            first, second = (_server(url, mixed, given) for url in (a, b))
        else:
            better = OFFLINE
            plan = Plan(given["prompt"], tokens, (batch,), repeat=1)
            first, second = (_configuration(side, plan, stack) for side in (a, b))
        values = interleave(first, second, repeat)
    rows = ratios(values, better)
    result = {"a": a, "b": b, "rounds": repeat, "rows": rows, "load": load}
    if as_json:
        emit_json(result)
        return 0
    for row in rows:
        click.echo(
            f"{row['what']:<16} a {row['a']:10.2f}   b {row['b']:10.2f}   b/a {row['ratio'] or 0:6.3f} "
            f"({row['ratio_min'] or 0:.3f} to {row['ratio_max'] or 0:.3f})  {row['verdict']}"
        )
    return 0


def _server(url: str, mixed: Mix, given: dict[str, Any]) -> _Measure:
    return lambda: _serve_figures(figures(run_load(url, mixed, given)[0]))


def _serve_figures(result: Mapping[str, Any]) -> dict[str, float]:
    if result["failed"]:
        raise ConfigError(f"{result['failed']} requests failed: {next(iter(result['errors']))}")
    out = {"output_tok_s": result["output_tok_s"], "request_s": result["request_s"]}
    shown = (("ttft", "p50"), ("ttft", "p95"), ("tpot", "p50"), ("itl", "p95"), ("latency", "p50"))
    for name, key in shown:
        value = result[f"{name}_ms"][key]
        if value is not None:
            out[f"{name}_{key}_ms"] = value
    return out


def _configuration(text: str, plan: Plan, stack: ExitStack) -> _Measure:
    """A loaded configuration, freed with ``stack``."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r}: {error}") from None
    if words and not words[0].startswith("-"):
        words = ["-m", *words]
    given = dict(_side.make_context("configuration", words).params)
    model = given.pop("model")
    if given["max_model_len"] is None:
        given["max_model_len"] = plan.longest
    loaded = load_engine(model, read_options(given, max_seqs=max(plan.batches)))
    stack.callback(loaded.engine.close)
    limits = measure_limits(loaded.config.threads)

    def measure() -> dict[str, float]:
        result = Offline(loaded, limits).run(plan)
        return {"prefill_tok_s": result["prefill"]["tok_s"], "decode_tok_s": result["decode"][0]["tok_s"]}

    return measure


@click.command("report", epilog="Example: spola bench report serve.json offline.json -o report.html")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE..."
)
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .html page of all, or a .svg picture of one.",
)
@json_option
def report(files: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """A page from results that bench offline, serve, kernels and compare printed with --json."""
    results = [(path.name, read_result(path)) for path in files]
    if output.suffix == ".svg":
        if len(results) != 1:
            raise click.UsageError("a .svg has one result; write a .html page of several")
        text = report_svg(results[0][1])
    else:
        text = report_html(results)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from None
    if as_json:
        emit_json({"output": str(output), "results": len(results), "bytes": len(text.encode())})
    else:
        click.echo(f"{output}: {len(results)} result{'s' * (len(results) > 1)}")
