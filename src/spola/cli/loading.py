"""A bar on stderr while weights are read: on a terminal only, and not for what is done in a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["loading_bar"]

PATIENCE_S = 0.5


@contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Gives what ``load_engine`` takes as ``progress``; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    # The library takes a while to import; whoever only reads a log need not wait for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        "loading", BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console, transient=True
    )
    task = bar.add_task("loading", total=None)
    begun = time.monotonic()
    shown = False

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun > PATIENCE_S:
            shown = True
            bar.start()
        if shown:
            bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if shown:
            bar.stop()
