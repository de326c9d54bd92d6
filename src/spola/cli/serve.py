"""``spola serve``: the OpenAI HTTP API on a port."""

from __future__ import annotations

import sys
from typing import Any

import click

from spola.cli.options import (
    batching_options,
    describe,
    engine_options,
    in_short,
    model_option,
    read_options,
    trace_failed,
    trace_option,
)
from spola.cli.output import emit_json, json_option, note
from spola.load.resolve import resolve_model
from spola.runtime.build import build_service
from spola.runtime.service import Service
from spola.server.serve import bind, check_host, serve

__all__ = ["command"]


@click.command("serve", epilog="Example: spola serve -m model.gguf --port 8000")
@model_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option("--served-model-name", metavar="N", help="What clients call the model; default: its own name.")
@click.option("--max-seqs", default=32, show_default=True, type=click.IntRange(1), help="Requests at a time.")
@click.option(
    "--itl-target",
    default=100.0,
    show_default=True,
    metavar="MS",
    type=click.FloatRange(0, min_open=True),
    help="Keep the time between two tokens of an answer under this while prompts are read.",
)
@click.option("--no-auth", is_flag=True, help="Allow a --host that other machines can reach, without keys.")
@batching_options
@engine_options
@trace_option
@click.option("-v", "--verbose", is_flag=True, help="Say what was chosen and why.")
@json_option
def command(
    model: str | None,
    host: str,
    port: int,
    served_model_name: str | None,
    max_seqs: int,
    itl_target: float,
    no_auth: bool,
    verbose: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Serve /v1/completions, /v1/chat/completions, /v1/models and /health.

    With --json, one document with the address and what was chosen goes to stdout when requests are taken.
    """
    check_host(host, no_auth=no_auth)
    options = read_options(given, trace=given.pop("trace"), max_seqs=max_seqs, itl_target_s=itl_target / 1000)
    where = resolve_model(model)
    listener = bind(host, port)

    built: list[Service] = []

    def build() -> Service:
        service = build_service(model, options)
        built.append(service)
        service.grammars.warm()  # not while others wait for tokens
        for line in service.notes:
            note(f"spola: note: {line}")
        if verbose:
            describe(service.config, service.load_s)
        else:
            note(in_short(service.config, service.load_s))
        return service

    def ready(url: str, service: Service) -> None:
        note(f"serving {name} on {url}")
        if as_json:
            emit_json({"url": url, "model": name, "config": service.config})
            sys.stdout.flush()

    name = served_model_name or where.name
    with listener:
        code = serve(listener, name, build, ready, note)
    for service in built:
        trace_failed(service)
    return code
