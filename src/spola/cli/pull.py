"""``spola pull``: bring the small model here."""

from __future__ import annotations

import click

from spola.cli.output import emit_json, json_option, note
from spola.core.errors import ConfigError
from spola.load.fetch import pull_embedded
from spola.load.resolve import EMBEDDED_NAME

__all__ = ["command"]


@click.command("pull", epilog="Example: spola pull smollm2")
@click.argument("model")
@json_option
def command(model: str, as_json: bool) -> None:
    """Fetch MODEL into the user's cache. Only smollm2 (98 MB) can be fetched so far."""
    if model != EMBEDDED_NAME:
        raise ConfigError(
            f"pull {model}: only {EMBEDDED_NAME} can be fetched; pass any GGUF file with -m FILE.gguf"
        )
    path, fetched = pull_embedded()
    note("fetched and checked" if fetched else "already here, checked")
    if as_json:
        emit_json({"model": model, "path": str(path), "fetched": fetched, "bytes": path.stat().st_size})
    else:
        click.echo(str(path))
