"""Run a command in this process, as the console script would."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from spola.cli import main

__all__ = ["Done", "spola"]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def spola(*args: str, stdin: str | bytes = "", **env: str) -> Done:
    """Run a command in this process, as the console script would."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    data = stdin.encode() if isinstance(stdin, str) else stdin
    code = None
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
        for name, value in env.items():
            patch.setenv(name, value)
        try:
            main.main(list(args))
        except SystemExit as exit:
            code = exit.code
    assert isinstance(code, int)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return Done(code, *texts)
