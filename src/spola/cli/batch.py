"""``spola batch``: a file of requests in, a file of answers out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from spola.cli.options import (
    batching_options,
    describe,
    engine_options,
    lora_option,
    max_seqs_option,
    model_option,
    read_options,
    trace_failed,
    trace_option,
    verbose_option,
)
from spola.cli.output import emit_json, json_option, note
from spola.core.errors import ConfigError
from spola.load.resolve import resolve_model
from spola.runtime.build import build_service
from spola.runtime.service import Service
from spola.server.batch import Tally, batch_salt, is_complete, run_batch
from spola.server.batch_input import BatchInput

__all__ = ["command"]

REPORT_EVERY_S = 10.0


@click.command("batch", epilog="Example: spola batch questions.jsonl -o answers.jsonl -m model.gguf")
@click.argument("source", metavar="IN.jsonl", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="OUT.jsonl",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the answers go, in the order of IN.jsonl.",
)
@model_option
@click.option("--served-model-name", metavar="N", help="What lines call the model; default: its own name.")
@max_seqs_option
@batching_options
@engine_options
@lora_option
@trace_option
@verbose_option
@json_option
def command(
    source: Path,
    out: Path,
    model: str | None,
    served_model_name: str | None,
    max_seqs: int,
    verbose: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Answer the OpenAI batch lines of IN.jsonl: each once, also when it is interrupted and started again.

    A line has custom_id, method POST, url (/v1/chat/completions or /v1/completions), body, and if wanted
    priority: lower goes first. Until all are done, answers are in OUT.jsonl.partial; the same command goes on
    from there. The output is the same however often it was interrupted.
    """
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}")
    if out.exists() and not out.is_file():
        raise ConfigError(f"{out}: is not a regular file; choose another output")
    if out.exists() and out.samefile(source):
        raise click.UsageError("input and output are the same file")
    BatchInput(source).close()  # a wrong file is refused before the model is loaded
    options = read_options(given, trace=given.pop("trace"), max_seqs=max_seqs)
    if options.draft_rule != "match":
        raise click.UsageError(
            "a batch that goes on after a crash must come out the same: --draft-rule match"
        )
    name = served_model_name or resolve_model(model).name
    service = build_service(model, options)
    try:
        for line in service.notes:
            note(f"spola: note: {line}")
        if verbose:
            describe(service.config, service.load_s)
        result = _run(service, name, source, out)
    finally:
        service.close()
        trace_failed(service)
    if as_json:
        emit_json(result)


def _run(service: Service, name: str, source: Path, out: Path) -> dict[str, Any]:
    started = time.monotonic()
    with BatchInput(source, batch_salt(service, name)) as lines:
        if is_complete(lines, out):
            tally = Tally(len(lines.entries), resumed=len(lines.entries))
            note(f"{out} is complete: nothing to do")
        else:
            tally = run_batch(service, name, lines, out, progress=_Progress())
    seconds = time.monotonic() - started
    metrics = service.metrics.as_dict()
    new = tally.lines - tally.resumed
    note(
        f"{tally.lines} lines, {tally.resumed} of them done before, {tally.errors} errors; "
        f"{metrics['tokens']['output']} tokens for {new} lines in {seconds:.1f} s"
    )
    return {
        "lines": tally.lines,
        "resumed": tally.resumed,
        "errors": tally.errors,
        "output": str(out),
        "duration_s": seconds,
        "metrics": metrics,
    }


class _Progress:
    """A line now and then."""

    def __init__(self) -> None:
        self._next = time.monotonic() + REPORT_EVERY_S

    def __call__(self, tally: Tally, left: int) -> None:
        if time.monotonic() >= self._next:
            note(f"{tally.lines - left} of {tally.lines} lines done")
            self._next = time.monotonic() + REPORT_EVERY_S
