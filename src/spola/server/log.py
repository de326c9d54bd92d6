"""The server's log: one line per event on stderr, as text or as JSON.

Lines are written by a thread of their own, through a bounded queue: who reads stderr slowly loses lines
(their number is told later) and never holds up an answer. Bodies, secrets and query strings are never logged.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import time
from typing import Any, Literal

import msgspec

__all__ = ["Log", "LogFormat", "logger"]

LogFormat = Literal["text", "json", "off"]
logger = logging.getLogger("spola.server")
_OURS = ("spola.server", "uvicorn.error")
_MOST = 10_000  # lines that wait to be written


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f" {record.levelname.lower()}:"
        fields = getattr(record, "fields", None) or {}
        tail = "".join(f"  {name}={_shown(value)}" for name, value in fields.items() if value is not None)
        return f"{clock}{level} {record.getMessage()}{tail}{_trace(self, record)}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        fields = getattr(record, "request", {}) | getattr(record, "fields", {})
        entry |= {name: value for name, value in fields.items() if value is not None}
        trace = _trace(self, record)
        if trace:
            entry["traceback"] = trace.strip()
        return msgspec.json.encode(entry).decode()


class _Handler(logging.handlers.QueueHandler):
    """Never waits: a line that finds the queue full is counted and dropped."""

    def __init__(self, lines: queue.Queue[Any]) -> None:
        super().__init__(lines)
        self.lost = 0
        self._waiting = lines.qsize

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # it stays in this process

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.lost += 1
            return
        if self.lost and self._waiting() < _MOST // 2:
            lost, self.lost = self.lost, 0
            logger.warning("%d lines of this log were lost: stderr was not read fast enough", lost)


class Log:
    """Sets up logging of the server until ``close``. ``off``: only warnings and errors, as text."""

    def __init__(self, form: LogFormat = "text", stream: Any = None) -> None:
        lines: queue.Queue[Any] = queue.Queue(_MOST)
        out = logging.StreamHandler(sys.stderr if stream is None else stream)
        out.setFormatter(_Json() if form == "json" else _Text())
        self._handler = _Handler(lines)
        self._listener = logging.handlers.QueueListener(lines, out)
        self._before = {name: logging.getLogger(name).level for name in _OURS}
        for name in _OURS:
            one = logging.getLogger(name)
            one.addHandler(self._handler)
            one.propagate = False
            one.setLevel(logging.INFO if name == logger.name and form != "off" else logging.WARNING)
        self._listener.start()

    def close(self) -> None:
        """Write what waits and undo the set-up. Idempotent."""
        for name, level in self._before.items():
            one = logging.getLogger(name)
            one.removeHandler(self._handler)
            one.propagate = True
            one.setLevel(level)
        if self._before:
            self._before = {}
            self._listener.stop()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if text.isprintable() else repr(text)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""
