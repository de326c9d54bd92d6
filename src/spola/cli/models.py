"""``spola models``: what is on this disk, what could be fetched, and what to expect of it on this machine."""

from __future__ import annotations

from dataclasses import asdict

import click

from spola.cli.output import emit_json, json_option, printable
from spola.runtime.machine import describe_bytes, probe
from spola.runtime.shelf import PROMPT, Row, measure_rates, rows

__all__ = ["command"]


@click.command("models", epilog="Example: spola models")
@json_option
def command(as_json: bool) -> None:
    """List models on this disk, and short names that `spola pull` fetches, with what to expect of each here.

    Speeds are bounds from this machine's memory bandwidth and arithmetic, measured once: decoding is at most
    as fast, the first token of a prompt of 512 tokens comes at the earliest then. Nothing is downloaded.
    """
    machine = probe()
    found = list(rows(machine, measure_rates(machine)))
    if as_json:
        emit_json({"prompt_tokens": PROMPT, "models": [asdict(row) for row in found]})
        return
    for title, here in (("on this disk", True), ("to fetch with `spola pull NAME`", False)):
        some = [row for row in found if row.on_disk is here]
        if some:
            click.echo(f"{title}:")
        for row in some:
            click.echo("  " + printable(_line(row)))


def _line(row: Row) -> str:
    head = f"{row.name:<44} {describe_bytes(row.size):>9}"
    if row.problem:
        return f"{head}  does not run: {row.problem}"
    parts = ["fits" if row.fits else "does not fit in memory"]
    if row.decode_tok_s is not None:
        parts.append(f"up to {row.decode_tok_s:.1f} tok/s")
    if row.ttft_s is not None:
        parts.append(f"{PROMPT}-token prompt from {row.ttft_s:.1f} s")
    if row.licence:
        parts.append(row.licence)
    return f"{head}  {', '.join(parts)}"
