"""What commands print: one JSON document or plain lines on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from spola.core.errors import RequestError
from spola.runtime.contention import is_quiet

__all__ = [
    "check_text",
    "emit_json",
    "json_option",
    "note",
    "note_others",
    "printable",
    "read_stdin",
    "write",
]

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)


def emit_json(value: Any) -> None:
    """Print ``value`` as one JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write(text: str) -> None:
    """Print ``text`` as it is, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(line: str) -> None:
    """One line for the person, not for the pipe."""
    print(printable(line), file=sys.stderr, flush=True)


def note_others(others: float) -> None:
    """Say so where the machine was measured beside other work, which makes its limits too low."""
    if not is_quiet(others):
        note(
            f"other work took {others:.1f} processors while the machine was measured: "
            "its limits are higher than shown"
        )


def printable(text: str, keep: str = "") -> str:
    """``text`` with control characters, but those in ``keep``, as escapes.

    Names in a model file must not steer the terminal, or pose as lines of ours.
    """
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def check_text(what: str, text: str | None) -> None:
    """Raise RequestError, naming ``what``, for an argument whose bytes were not UTF-8."""
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError as error:
        at = len(os.fsencode(str(error.object)[: error.start]))
        raise RequestError(f"{what} is not valid UTF-8 at byte {at}", param=what) from None


def read_stdin(what: str) -> str:
    """All of stdin as it is. Raises RequestError, naming ``what``, when it is not UTF-8."""
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{what}: stdin is not valid UTF-8 at byte {error.start}", param=what) from None
