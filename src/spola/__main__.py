"""The ``spola`` command and ``python -m spola``. Until the command runs, an interrupt ends it quietly."""

from __future__ import annotations

import os
import signal
from typing import Any

__all__ = ["main"]

INTERRUPTED = 130


def main() -> Any:
    """Run the command line; does not return. Exit code 130 when interrupted, also during the imports."""
    python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody wants it ignored
    if python:
        # There is nothing to undo yet, and a KeyboardInterrupt inside of an import ends in a traceback.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    from spola.cli import main as command

    if python:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return command()


if __name__ == "__main__":
    main()
