"""TraceWriter: a timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

The file is a JSON array, one event a line, written as things happen: of a program that dies only the closing
bracket is missing, and both viewers accept that. ``close`` makes it valid JSON. Times in seconds come in, the
file has microseconds. A disk that fails ends the trace and is remembered in ``failure``; it never ends the
program.

Source: "Trace Event Format", the Chromium project, JSON Array Format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from spola.core.errors import ConfigError

__all__ = ["TraceWriter"]

_encoder = msgspec.json.Encoder()


class TraceWriter:
    """Writes to ``path``, replacing what was there. Raises ConfigError when it cannot be opened.

    Events are gathered until ``flush``. ``pid`` and ``tid`` are any two numbers: a group and a row in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        self._file: BinaryIO | None = None
        self._lines: list[bytes] = []
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"the trace cannot be written to {path}: {error.strerror}") from None
        self._write(b"[\n")

    def group(self, pid: int, name: str) -> None:
        """Name group ``pid``."""
        self._event("M", "process_name", 0.0, pid, 0, {"name": name})

    def row(self, pid: int, tid: int, name: str) -> None:
        """Name row ``tid`` of group ``pid`` and put it in the order of the numbers."""
        self._event("M", "thread_name", 0.0, pid, tid, {"name": name})
        self._event("M", "thread_sort_index", 0.0, pid, tid, {"sort_index": tid})

    def span(
        self, name: str, start_s: float, length_s: float, pid: int, tid: int, args: dict[str, Any]
    ) -> None:
        """Something that took ``length_s`` seconds."""
        self._event("X", name, start_s, pid, tid, args, dur=_us(length_s))

    def begin(self, name: str, at_s: float, pid: int, tid: int, args: dict[str, Any]) -> None:
        """The start of something that encloses what follows in its row, until ``end``."""
        self._event("B", name, at_s, pid, tid, args)

    def end(self, name: str, at_s: float, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._event("E", name, at_s, pid, tid, args)

    def wait(self, name: str, key: int, start_s: float, end_s: float, pid: int) -> None:
        """Something that occupies no row; waits with the same ``key`` are drawn together."""
        for phase, at in (("b", start_s), ("e", end_s)):
            self._event(phase, name, at, pid, 0, {}, cat="wait", id=key)

    def counter(self, name: str, at_s: float, pid: int, values: Mapping[str, float]) -> None:
        """Values that hold from now on, stacked in one graph."""
        self._event("C", name, at_s, pid, 0, dict(values))

    def flush(self) -> None:
        """Hand what was gathered to the system, in one write."""
        if self._lines:
            self._write(b"".join(self._lines))
            self._lines.clear()

    def close(self) -> None:
        """End the array. Idempotent."""
        if self._file is None:
            return
        # The last event has no comma after it.
        self._lines.append(b'{"ph":"M","name":"trace_end","ts":0,"pid":0,"tid":0,"args":{}}\n]\n')
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _event(
        self, phase: str, name: str, at_s: float, pid: int, tid: int, args: dict[str, Any], **more: Any
    ) -> None:
        event = {"ph": phase, "name": name, "ts": _us(at_s), "pid": pid, "tid": tid, **more, "args": args}
        self._lines.append(_encoder.encode(event) + b",\n")

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.failure = f"the trace {self.path} ends early: {error.strerror}"
            self._file.close()
            self._file = None


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
