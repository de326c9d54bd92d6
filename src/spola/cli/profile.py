"""``spola profile``: where the time of prefill and decode goes, operation by operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spola.bench.offline import Plan
from spola.bench.profile import profile
from spola.bench.profile_pages import profile_html, profile_table, write_trace
from spola.cli.options import engine_options, read_options
from spola.cli.output import emit_json, json_option, note, note_others
from spola.core.errors import ConfigError
from spola.runtime.build import load_engine
from spola.runtime.limits import bench_lock, measure_limits

__all__ = ["command"]

_COUNT = click.IntRange(1)


@click.command("profile", epilog="Example: spola profile model.gguf -p 256 -n 32 --html profile.html")
@click.argument("model", required=False)
@click.option("-p", "--prompt", default=256, show_default=True, type=_COUNT, help="Prompt tokens.")
@click.option("-n", "--tokens", default=32, show_default=True, type=_COUNT, help="Decode steps.")
@click.option(
    "-b", "--batch", default=1, show_default=True, type=_COUNT, help="Requests that decode together."
)
@click.option("--repeat", default=3, show_default=True, type=_COUNT, help="Runs; the median is shown.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="One page with pictures."
)
@click.option(
    "--chrome-trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For ui.perfetto.dev or chrome://tracing.",
)
@engine_options
@json_option
def command(
    model: str | None,
    prompt: int,
    tokens: int,
    batch: int,
    repeat: int,
    html: Path | None,
    chrome_trace: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Time, bytes and multiply-adds of each operation, beside what this machine allows.

    A share of the roofline above 100 % means that an operation's bytes came from a cache.
    """
    plan = Plan(prompt, tokens, (batch,), depth=prompt)
    if given["max_model_len"] is None:
        given["max_model_len"] = plan.longest
    with bench_lock(note) as load:
        loaded = load_engine(model, read_options(given, max_seqs=batch))
        try:
            limits = measure_limits(loaded.config.threads, loaded.config.packed_bytes)
            result = profile(loaded, limits, prompt=prompt, tokens=tokens, batch=batch, repeat=repeat)
        finally:
            loaded.engine.close()
    note_others(limits.others)
    if html is not None:
        try:
            html.write_text(profile_html(result), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {html}: {error.strerror}") from None
    failure = None if chrome_trace is None else write_trace(result, chrome_trace)
    if as_json:
        emit_json(result | {"load": load})
    else:
        for line in profile_table(result):
            click.echo(line)
    if failure is not None:
        note(f"spola: warning: {failure}")
    return int(failure is not None)
