"""``spola pull``: bring a model here."""

from __future__ import annotations

from pathlib import Path

import click

from spola.cli.output import emit_json, json_option, note
from spola.core.errors import ConfigError
from spola.load.fetch import pull_embedded
from spola.load.hub import download, look_up
from spola.load.names import BY_NAME
from spola.load.resolve import EMBEDDED_NAME, hub_name
from spola.runtime.machine import describe_bytes

__all__ = ["command"]


@click.command("pull", epilog="Example: spola pull qwen2.5-0.5b")
@click.argument("model")
@json_option
def command(model: str, as_json: bool) -> None:
    """Fetch MODEL: smollm2, a short name of `spola models`, or org/name[:TYPE] on the Hugging Face hub.

    From a repository with GGUF files one is chosen (TYPE, else Q4_K_M, Q8_0 or Q4_0), and said which. Goes
    into the hub's own cache; an interrupted download goes on where it was, and every hash is checked.
    """
    if model == EMBEDDED_NAME:
        path, fetched = pull_embedded()
        note("fetched and checked" if fetched else "already here, checked")
        size = path.stat().st_size
    else:
        path, size = _from_hub(model)
        fetched = True
    if as_json:
        emit_json({"model": model, "path": str(path), "fetched": fetched, "bytes": size})
    else:
        click.echo(str(path))


def _from_hub(model: str) -> tuple[Path, int]:
    known = BY_NAME.get(model)
    named = hub_name(model if known is None else known.full_name)
    if named is None:
        raise ConfigError(
            f"pull {model[:80]}: is no short name (`spola models` lists them) and not org/name[:TYPE]"
        )
    repository, tag = named
    plan = look_up(repository, tag)
    note(f"{plan.note}, {describe_bytes(plan.size)}")
    return download(plan, note), plan.size
