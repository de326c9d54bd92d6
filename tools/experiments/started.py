"""``spola serve`` on a free port for an experiment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["started"]


@contextmanager
def started(model: str, *options: str) -> Iterator[str]:
    """The URL of a server of ``model``, without the log of its requests, which ends with the block."""
    command = [sys.executable, "-m", "spola", "serve", "-m", model, "--port", "0", "--json"]
    command += ["--log-format", "off", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("}\n") or text.count("{") != text.count("}"):
                line = process.stdout.readline()
                if not line:
                    raise SystemExit("the server did not start")
                text += line
            yield json.loads(text)["url"]
        finally:
            process.terminate()
