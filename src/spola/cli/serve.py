"""``spola serve``: models behind the HTTP APIs of OpenAI and Anthropic, on a port."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from spola.cli.loading import loading_bar
from spola.cli.options import (
    as_usage,
    batching_options,
    describe,
    engine_options,
    in_short,
    itl_target_option,
    lora_option,
    max_seqs_option,
    measured_line,
    plan_lines,
    read_options,
    trace_failed,
    trace_option,
    verbose_option,
)
from spola.cli.output import emit_json, json_option, note, printable
from spola.core import flags
from spola.load.resolve import resolve_model
from spola.runtime.build import build_service
from spola.runtime.config import Options
from spola.runtime.fair_lock import FairLock
from spola.runtime.service import Service
from spola.runtime.sharing import plan_of_all, share_memory
from spola.server.keys import read_keys
from spola.server.log import Log, LogFormat, logger
from spola.server.options import ServerOptions, event_loop
from spola.server.serve import bind, check_host, serve
from spola.server.shelf import Book, Shelf
from spola.server.spans import Spans

__all__ = ["command"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_Decorator = Callable[[Any], Any]
_SECONDS = click.FloatRange(0, min_open=True)

_SERVER: tuple[_Decorator, ...] = (
    click.option(
        "--keys",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="API keys with weights and limits, as TOML; SPOLA_API_KEY takes plain secrets.",
    ),
    click.option(
        "--no-auth", is_flag=True, help="Allow a --host that other machines can reach, without keys."
    ),
    click.option(
        "--strict", is_flag=True, help="Refuse requests with fields that nobody knows, instead of saying so."
    ),
    click.option(
        "--key-seats",
        type=click.IntRange(1),
        metavar="N",
        help="Requests of one API key at a time, so that a flood leaves places for other keys; default with "
        "several keys: all but an eighth of --max-seqs.",
    ),
    click.option(
        "--cors-origin",
        multiple=True,
        metavar="URL",
        help="Let web pages of this origin call; * is any. Repeatable; default: none.",
    ),
    click.option(
        "--max-queue",
        default=512,
        show_default=True,
        type=click.IntRange(0),
        help="Choices that may wait beside those that run; more are refused with 429.",
    ),
    click.option(
        "--queue-timeout", type=_SECONDS, metavar="S", help="Give up on what waits longer, with 503."
    ),
    click.option(
        "--request-timeout", type=_SECONDS, metavar="S", help="Give up on what takes longer, with 503."
    ),
    click.option(
        "--drain-timeout",
        default=8.0,
        show_default=True,
        type=click.FloatRange(0),
        metavar="S",
        help="How long running answers may go on after a signal to stop.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(get_args(LogFormat)),
        default="text",
        show_default=True,
        help="A line on stderr for every request, or none.",
    ),
    click.option(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="Send an OpenTelemetry span for each request there (OTLP over HTTP); needs spola[otel].",
    ),
    click.option(
        "--event-loop",
        type=click.Choice(("asyncio", "uvloop")),
        default="asyncio",
        show_default=True,
        help="What waits for connections: Python's own, or the cheaper uvloop; needs spola[uvloop].",
    ),
)


def _server_options(command: Any) -> Any:
    for option in reversed(_SERVER):
        command = option(command)
    return command


@click.command("serve", epilog="Example: spola serve -m model.gguf --port 8000")
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="GGUF file, Hugging Face folder, a name from `spola models`, org/name[:TYPE] or ollama:NAME; "
    "default: smollm2. Repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option(
    "--served-model-name",
    metavar="N",
    multiple=True,
    help="What clients call the model; default: its own name. Repeatable.",
)
@max_seqs_option
@itl_target_option
@_server_options
@batching_options
@engine_options
@lora_option
@trace_option
@verbose_option
@json_option
def command(
    models: tuple[str, ...],
    host: str,
    port: int,
    served_model_name: tuple[str, ...],
    max_seqs: int,
    itl_target: float,
    verbose: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Serve the APIs of OpenAI and Anthropic: chat, completions, responses, messages, embeddings and more.

    A page is at the server's address, and the document of all routes at /openapi.json.

    With --json, one document with the address and what was chosen goes to stdout when requests are taken.
    """
    form: LogFormat = given.pop("log_format")
    key_seats = given.pop("key_seats")
    server = _read_server(given, host)
    if key_seats is None and len(server.keys.keys) > 1:
        key_seats = max(1, max_seqs - max(1, max_seqs // 8))
    options = read_options(
        given,
        trace=given.pop("trace"),
        max_seqs=max_seqs,
        key_seats=key_seats,
        itl_target_s=itl_target / 1000,
    )
    named = _named(models, served_model_name)
    if options.lora and len(named) > 1:
        raise click.UsageError("--lora: adapters are for one model, and there are several")
    if taken := next((name for names in named for name in names if name in dict(options.lora)), None):
        raise click.UsageError(f"--lora: an adapter must not have the name of the model, {taken!r}")
    listener = bind(host, port)
    say: Callable[[str], None] = note
    if form == "json":

        def say(line: str) -> None:
            logger.info("%s", printable(line))

    built: list[Service] = []
    turns = FairLock()

    def build(model: str | None, options: Options) -> Service:
        with loading_bar() as progress:
            service = build_service(model, options, turn=turns, progress=progress)
        built.append(service)
        for line in service.notes:
            say(f"spola: note: {line}")
        if verbose:
            describe(service.config, service.load_s)
        else:
            say(in_short(service.config, service.load_s))
        for line in plan_lines(service.config):
            say(line)
        _compare(service, "after loading", say)
        return service

    def ready(url: str, service: Service) -> None:
        names = [name for names in named for name in names]
        say(f"serving {', '.join(names)} on {url}; the page is at {url.removesuffix('/v1')}/")
        if as_json:
            emit_json({"url": url, "model": names[0], "names": names, "config": service.config})
            sys.stdout.flush()

    log = Log(form)
    try:
        with listener:
            shelf = _shelf(named, options, build, say)
            first = shelf.books[0].build
            assert first is not None
            code = serve(listener, shelf, first, ready, say, server)
        for service in built:
            _compare(service, "in all", say)
    finally:
        if server.spans is not None:
            server.spans.close()
        log.close()
    for service in built:
        trace_failed(service)
    return code


def _named(models: Sequence[str], served: Sequence[str]) -> dict[tuple[str, ...], str | None]:
    """Names -> model, in the order given. Raises ConfigError, UsageError for names that mean two models."""
    if len(models) > 1 and served:
        raise click.UsageError("--served-model-name is for one model; with several write -m NAME=MODEL")
    out: dict[tuple[str, ...], str | None] = {}
    for given in models or (None,):
        name, found, model = (given or "").partition("=")
        if not found or not _NAME.fullmatch(name) or (given is not None and Path(given).exists()):
            name, model = "", given or ""
        where = resolve_model(model or None)
        names = tuple(dict.fromkeys(served)) or (name or where.name,)
        if any(one in other for other in out for one in names):
            raise click.UsageError(f"two models are called {names[0]!r}; write -m NAME=MODEL")
        out[names] = model or None
    return out


def _shelf(
    named: Mapping[tuple[str, ...], str | None],
    options: Options,
    build: Callable[[str | None, Options], Service],
    say: Callable[[str], None],
) -> Shelf:
    if len(named) == 1:
        ((names, model),) = named.items()
        return Shelf([Book(names, partial(build, model, options))])
    shares, total = share_memory([model or "smollm2" for model in named.values()], options)
    say(plan_of_all([names[0] for names in named], shares, total))
    books = [
        Book(names, partial(build, share.model, share.options), share.bytes)
        for names, share in zip(named, shares, strict=True)
    ]
    return Shelf(books, total)


def _read_server(given: dict[str, Any], host: str) -> ServerOptions:
    """Take the server's own options out of ``given``. Raises ConfigError, UsageError."""
    keys = read_keys(given.pop("keys"), flags.read("SPOLA_API_KEY"))
    check_host(host, keys=bool(keys), no_auth=given.pop("no_auth"))
    endpoint = given.pop("otlp_traces_endpoint")
    new_loop = event_loop(given.pop("event_loop"))
    spans = None if endpoint is None else Spans.to(endpoint)
    with as_usage():
        return ServerOptions(
            strict=given.pop("strict"),
            keys=keys,
            cors_origins=given.pop("cors_origin"),
            spans=spans,
            max_queue=given.pop("max_queue"),
            queue_timeout_s=given.pop("queue_timeout"),
            request_timeout_s=given.pop("request_timeout"),
            drain_s=given.pop("drain_timeout"),
            new_loop=new_loop,
        )


def _compare(service: Service, when: str, say: Callable[[str], None]) -> None:
    """Say how the memory planned compares with the memory taken."""
    line = measured_line(service.config, service.metrics.kv_filled_peak, when)
    if line is not None:
        say(line)
