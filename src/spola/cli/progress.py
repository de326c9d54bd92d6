"""Progress of downloads, on stderr: bars on a terminal, a line per file elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from spola.cli.output import note
from spola.load.transfer import Remote, describe_size

__all__ = ["Downloads"]


class Downloads:
    """Called with a file, what is done with it and how many of its bytes are; a context manager.

    Draws nothing on a stderr that is no terminal.
    """

    def __init__(self) -> None:
        self._bars: Any = _bars() if sys.stderr.isatty() else None
        self._tasks: dict[tuple[str, str], Any] = {}

    def __call__(self, file: Remote, doing: str, done: int) -> None:
        key = (file.name, doing)
        if key not in self._tasks:
            self._tasks[key] = self._begin(file, doing, done)
        elif self._bars is not None:
            self._bars.update(self._tasks[key], completed=done)

    def _begin(self, file: Remote, doing: str, done: int) -> Any:
        base = file.name.rsplit("/", 1)[-1]
        if self._bars is not None:
            return self._bars.add_task(f"{doing} {base}", total=file.size, completed=done)
        if doing == "fetching":
            rest = f" from {describe_size(done)} on" if done else ""
            note(f"{doing} {base}, {describe_size(file.size)}{rest}")
        return None

    def __enter__(self) -> Downloads:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
