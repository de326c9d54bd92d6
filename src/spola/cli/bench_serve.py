"""``spola bench serve``: load on a server, and what it answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from spola.bench.figures import figures, parse_slos, table
from spola.bench.http import Target
from spola.bench.pictures import serve_page
from spola.bench.serve import Load, Outcome, calls_of, drive, served_model
from spola.cli.options import as_usage, mix_options
from spola.cli.output import emit_json, json_option, note
from spola.core.errors import ConfigError
from spola.runtime.limits import bench_lock
from spola.workload import Mix, mix

__all__ = ["load_options", "read_mix", "run_load", "serve"]

_COUNT = click.IntRange(1)

_LOAD = (
    click.option("--requests", default=100, show_default=True, type=_COUNT, help="How many requests."),
    click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests per second (open loop)."),
    click.option(
        "--concurrency",
        type=_COUNT,
        help="Clients of a closed loop (default 8); with --rate, requests in flight at most.",
    ),
    click.option(
        "--burstiness",
        default=1.0,
        show_default=True,
        type=click.FloatRange(0, min_open=True),
        help="Shape of the gamma distances between arrivals: 1 is Poisson, less is burstier.",
    ),
    click.option(
        "--prompt", default=128, show_default=True, type=_COUNT, help="Prompt tokens (random, prefix)."
    ),
    click.option("--output", default=128, show_default=True, type=_COUNT, help="Tokens of an answer."),
)

_CALL = (
    click.option(
        "--model", metavar="NAME", help="Model to ask for; default: the first that the server names."
    ),
    click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True),
    click.option(
        "--token-ids",
        "vocab",
        type=_COUNT,
        metavar="VOCAB",
        help="Send prompts as token ids below VOCAB, exactly as long as asked (completions only).",
    ),
    click.option(
        "--ignore-eos/--natural-end",
        default=True,
        show_default=True,
        help="Whether answers must have all --output tokens (a field of vLLM's, which not all servers know).",
    ),
    click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0)),
    click.option("--extra", metavar="JSON", help="An object whose fields are added to every body."),
    click.option(
        "--same-prompts",
        is_flag=True,
        help="Prompts as in the last run of this seed, which a prefix cache may still know.",
    ),
    click.option(
        "--warmup", default=1, show_default=True, type=click.IntRange(0), help="Requests before, uncounted."
    ),
    click.option(
        "--timeout",
        default=600.0,
        show_default=True,
        type=click.FloatRange(0, min_open=True),
        help="Seconds.",
    ),
    click.option("--key", metavar="KEY", help="API key; default: OPENAI_API_KEY, if it is set."),
)


def load_options(command: Any) -> Any:
    """Add what describes a load; ``run_load`` and ``workload.mix`` take it."""
    for option in reversed(_CALL):
        command = option(command)
    command = mix_options(command)
    for option in reversed(_LOAD):
        command = option(command)
    return command


def run_load(url: str, mixed: Mix, given: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    """Drive the load in ``given`` against ``url``: the outcome, and how the JSON document begins."""
    key = given["key"] or os.environ.get("OPENAI_API_KEY")
    target = Target(url, {"Authorization": f"Bearer {key}"} if key else {})
    rate, concurrency = given["rate"], given["concurrency"]
    if rate is None and concurrency is None:
        concurrency = 8
    load = Load(rate, concurrency, given["burstiness"], given["seed"], given["timeout"], given["warmup"])

    async def whole() -> tuple[str, Outcome]:
        model = given["model"] or await served_model(target)
        calls = calls_of(
            mixed,
            model,
            endpoint=given["endpoint"],
            ignore_eos=given["ignore_eos"],
            temperature=given["temperature"],
            seed=given["seed"],
            vocab=given["vocab"],
            same_prompts=given["same_prompts"],
            extra=_extra(given["extra"]),
        )
        return model, await drive(target, calls, load)

    model, outcome = asyncio.run(whole())
    about = {
        "url": target.url,
        "model": model,
        "endpoint": given["endpoint"],
        "arrivals": load.describe(),
        "dataset": mixed.about,
        "seed": given["seed"],
    }
    return outcome, about


def read_mix(given: dict[str, Any]) -> Mix:
    """The mix that the options describe."""
    if given["vocab"] is not None and given["endpoint"] != "completions":
        raise click.UsageError("--token-ids needs --endpoint completions")
    if given["rate"] is None and given["burstiness"] != 1.0:
        raise click.UsageError("--burstiness is of an open loop: it needs --rate")
    names = ("seed", "prompt", "output", "spread", "shared", "groups")
    with as_usage():
        return mix(given["dataset"], given["requests"], **{name: given[name] for name in names})


def _extra(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except msgspec.DecodeError as error:
        raise ConfigError(f"--extra is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--extra must be a JSON object")
    return value


@click.command(
    "serve", epilog="Example: spola bench serve --url http://127.0.0.1:8000 --rate 4 --requests 200"
)
@click.option("--url", required=True, metavar="URL", help="Of any server with OpenAI's API.")
@load_options
@click.option(
    "--slo",
    "slos",
    multiple=True,
    metavar="METRIC:MS",
    help="An objective for goodput, as ttft:200, tpot:50 or latency:5000. Repeatable: all must be met.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw the run.")
@json_option
def serve(url: str, slos: tuple[str, ...], svg: Path | None, as_json: bool, **given: Any) -> int:
    """Load a server with streamed requests and measure what its clients see.

    With --rate requests come whether or not earlier ones are answered, and times count from when each should
    have been sent. Without, --concurrency clients each send the next request when the last is answered.
    Failed requests are counted and left out of the times; when all fail, the exit code is 1.
    """
    mixed = read_mix(given)
    with as_usage():
        wanted = parse_slos(slos)
    with bench_lock(note) as load:
        outcome, about = run_load(url, mixed, given)
    result = about | figures(outcome, wanted) | {"load": load}
    if svg is not None:
        try:
            svg.write_text(serve_page(result).render(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg {svg}: {error.strerror}") from None
    if as_json:
        emit_json(result)
    else:
        for line in table(result):
            click.echo(line)
    return int(result["failed"] == result["requests"])
