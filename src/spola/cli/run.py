"""``spola run``: one streamed answer, or a chat on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from spola.cli.chat import chat
from spola.cli.explain import explanation, shown
from spola.cli.options import (
    as_usage,
    describe,
    engine_options,
    lora_option,
    model_option,
    read_options,
    sampling_options,
    trace_failed,
    trace_option,
    verbose_option,
)
from spola.cli.output import check_text, emit_json, json_option, note, read_stdin, write
from spola.cli.stats import result_json, stats_line
from spola.core.params import SamplingParams
from spola.core.structured import StructuredOutputsParams
from spola.core.text_file import read_text
from spola.runtime.answer import Job
from spola.runtime.build import build_service
from spola.runtime.explain import BEST
from spola.runtime.loop import QueueMailbox
from spola.runtime.service import Service

__all__ = ["command"]

DEFAULT_MAX_TOKENS = 512
_MAX_SCHEMA = 1 << 20  # bytes; what may be compiled is bounded where it is


@click.command(
    "run",
    epilog='Examples: spola run "What is gravity?"; echo "Explain: ..." | spola run -m model.gguf',
)
@click.argument("prompt", required=False)
@model_option
@sampling_options
@click.option("--system", metavar="STR", help="What the system message says.")
@click.option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Answer with JSON that validates against the JSON Schema in FILE.",
)
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@click.option(
    "--explain",
    is_flag=True,
    help="Show each step's work, and the candidates of each token.",
)
@engine_options
@lora_option
@trace_option
@verbose_option
@json_option
def command(
    prompt: str | None,
    model: str | None,
    schema: Path | None,
    raw: bool,
    explain: bool,
    verbose: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Answer PROMPT, or what comes on stdin. Without either, on a terminal: a chat.

    Ends with one line on stderr: tokens, time to the first, decode speed and its fraction of this machine's
    memory bound. At most 512 tokens unless -n says otherwise.
    """
    system: str | None = given.pop("system")
    talk = prompt is None and sys.stdin.isatty()
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, and --raw leaves it out")
    if raw and given["chat_template"] is not None:
        raise click.UsageError("--raw leaves the chat template out: drop --raw or --chat-template")
    if talk and (raw or as_json or explain):
        option = "--raw" if raw else "--json" if as_json else "--explain"
        raise click.UsageError(f"{option} needs a PROMPT")
    check_text("PROMPT", prompt)
    check_text("--system", system)
    if prompt is None and not talk:
        # A line from echo ends in a newline that nobody meant to ask about.
        prompt = read_stdin("PROMPT").removesuffix("\n")
        if not prompt:
            raise click.UsageError("there is no PROMPT and stdin is empty")
    if explain and schema is not None:
        raise click.UsageError("--explain does not show what --schema rules out; leave one out")
    if len(given["lora"]) > 1:
        raise click.UsageError("an answer has one adapter: give one --lora, or serve with several")
    options = read_options(given, trace=given.pop("trace"), max_seqs=1)
    with as_usage():
        if schema is not None:
            text = read_text(schema, "--schema", _MAX_SCHEMA)
            given["structured_outputs"] = StructuredOutputsParams(json=text)
        SamplingParams(**{name: value for name, value in given.items() if value is not None})
    service = build_service(model, options)
    try:
        for line in service.notes:
            note(f"spola: note: {line}")
        if verbose:
            describe(service.config, service.load_s)
        given["max_tokens"] = given["max_tokens"] or DEFAULT_MAX_TOKENS
        params = service.defaults_with(**given)
        if params.structured_outputs is not None:
            service.grammars.of(params.structured_outputs, f"--schema {schema}")
        history = [{"role": "system", "content": system}] if system is not None else []
        if talk:
            chat(service, params, history)
            return 0
        assert prompt is not None
        return _answer(service, params, history, prompt, raw, as_json, explain)
    finally:
        service.close()
        trace_failed(service)


def _answer(
    service: Service,
    params: SamplingParams,
    history: list[dict[str, str]],
    prompt: str,
    raw: bool,
    as_json: bool,
    explain: bool,
) -> int:
    if explain:
        params = msgspec.structs.replace(params, logprobs=BEST)
    if raw:
        ids = service.prompt_ids(prompt)
    else:
        ids = service.chat_ids([*history, {"role": "user", "content": prompt}])
    mailbox = QueueMailbox()
    job = service.submit(ids, params, mailbox, adapter=only_adapter(service), follow=explain)
    try:
        follow(job, mailbox, quiet=as_json)
    except BaseException:
        service.abort(job)
        raise
    found = explanation(service, job) if explain else {}
    if as_json:
        emit_json(result_json(job) | found)
    elif found:
        for line in shown(service, found):
            click.echo(line)
    note(stats_line(service, job))
    return 0


def only_adapter(service: Service) -> str | None:
    """The adapter that was asked for, if one was."""
    return next(iter(service.config.adapters), None)


def follow(job: Job, mailbox: QueueMailbox, *, quiet: bool) -> None:
    """Print the answer as it comes, unless ``quiet``. Raises SpolaError when it ends in one."""
    text = ""
    while not job.done:
        for mail in mailbox.get():
            delta = job.take(mail)
            if delta.error is not None:
                raise delta.error
            text = delta.text or text
            if not quiet and delta.text:
                write(delta.text)
    if not quiet and not text.endswith("\n"):
        write("\n")
