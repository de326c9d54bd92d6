"""``spola serve`` as a process of its own, until the block ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.waiting import PATIENCE_S

__all__ = ["served"]


def _document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What ``spola serve --json`` says once it takes requests: one document over several lines."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            return json.loads(text)
    raise AssertionError(f"the server ended, with {process.wait(PATIENCE_S)}, after {text!r}")


@contextmanager
def served(*args: str, **popen: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server on a free port with the options ``args``, and its document; it must end well in the end."""
    command = [sys.executable, "-m", "spola", "serve", "--port", "0", "--json", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **popen)
    try:
        yield process, _document(process)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
