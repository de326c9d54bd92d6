"""``spola models``: what is on this disk, what could be fetched, and what to expect of it on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from spola.cli.output import emit_json, json_option, note, printable
from spola.planner.shelf import CONTEXT, PROMPT, Row, look
from spola.runtime.machine import describe_bytes

__all__ = ["command"]

_HEADS = ("", "params", "size", "memory", "fits", "tok/s", "TTFT", "context", "licence")


@click.command("models", epilog="Example: spola models")
@json_option
def command(as_json: bool) -> None:
    """List models on this disk, and short names that `spola pull` fetches, with what to expect of each here.

    Fit, decoding speed and the time to the first token of a prompt of 512 tokens are predicted as `spola
    plan` does it, for one request of 4096 tokens (or the model's context), before anything is downloaded.
    The machine is measured the first time, which takes seconds. Nothing is fetched.
    """
    shelf = look(say=note)
    if as_json:
        facts = {
            "prompt_tokens": PROMPT,
            "context_tokens": CONTEXT,
            "machine": shelf.machine,
            "busy": shelf.busy,
        }
        emit_json(facts | {"why_no_prediction": shelf.why, "models": [asdict(row) for row in shelf.rows]})
        return
    for title, here in (("on this disk (run with -m NAME)", True), ("`spola pull NAME` gets", False)):
        some = [row for row in shelf.rows if row.on_disk is here]
        if some:
            click.echo(f"{title}:")
            for line in _table(some):
                click.echo("  " + printable(line))
    if shelf.machine:
        note(
            f"predicted for {shelf.machine}: one request, a prompt of {PROMPT} tokens; "
            "org/name pulls any other repository of the hub"
        )
        if shelf.busy:
            note("the machine had other work while it was measured: speeds may be higher than this")
    else:
        note(f"no prediction: {shelf.why}")


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [_HEADS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADS))]
    out = []
    for row, line in zip((None, *rows), lines, strict=True):
        cells = [line[0].ljust(widths[0])] + [
            c.rjust(w) for c, w in zip(line[1:-1], widths[1:-1], strict=True)
        ]
        if row is not None and row.problem:
            out.append(f"{cells[0]}  {cells[2]}  does not run: {row.problem}")
        else:
            out.append("  ".join([*cells, line[-1]]).rstrip())
    return out


def _cells(row: Row) -> tuple[str, ...]:
    speed = "" if row.decode_tok_s is None else f"{row.decode_tok_s:.3g}"
    first = "" if row.ttft_s is None else f"{row.ttft_s:.2g} s" if row.ttft_s < 10 else f"{row.ttft_s:.0f} s"
    return (
        row.name,
        "" if row.parameters is None else _count(row.parameters),
        describe_bytes(row.size),
        "" if row.memory is None else describe_bytes(row.memory),
        {None: "", True: "yes", False: "no"}[row.fits],
        speed,
        first,
        "" if row.context is None else f"{row.context}",
        row.licence,
    )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"
