"""``spola flags``: the table of environment variables."""

from __future__ import annotations

import os

import click

from spola.cli.output import emit_json, json_option
from spola.core import flags

__all__ = ["command"]


@click.command("flags", epilog="Example: spola flags --json")
@json_option
def command(as_json: bool) -> None:
    """List the SPOLA_* environment variables: value, default and meaning.

    Fails when one of them is set to something it cannot be.
    """
    rows = [
        {
            "name": flag.name,
            "type": flag.kind.__name__,
            "default": flag.default,
            "value": _value(flag),
            "set": flag.name in os.environ,
            "choices": [choice for choice in flag.choices if choice],
            "doc": flag.doc,
        }
        for flag in flags.FLAGS.values()
    ]
    if as_json:
        emit_json({"flags": rows, "unknown": flags.unknown()})
        return
    for row in rows:
        mark = "*" if row["set"] else " "
        choices = f" ({', '.join(row['choices'])})" if row["choices"] else ""
        click.echo(f"{mark} {row['name']:<18} {_show(row['value']):<8} {row['doc']}{choices}")
    click.echo("* = set in the environment")


def _value(flag: flags.Flag) -> object:
    value = flags.read(flag.name)
    return "(hidden)" if flag.secret and value else value


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) or "-"
