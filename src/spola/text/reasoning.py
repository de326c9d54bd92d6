"""Reasoning in front of an answer: ``<think>…</think>`` and its like, told apart from what follows.

The template may have opened the reasoning already (``opened``); else it counts only at the very beginning of
the answer. Without a closing mark all of it is reasoning. What follows goes to another Reader.
"""

from __future__ import annotations

from spola.text.call_reader import held
from spola.text.parts import Part, Reader

__all__ = ["MARKS", "ReasoningReader"]

# Opening and closing mark; the first is the common one.
MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


class ReasoningReader:
    """A Reader around ``inner``. ``reasoned``: characters of the raw text up to the end of the reasoning."""

    def __init__(self, inner: Reader, *, opened: bool, marks: tuple[str, str] = MARKS[0]) -> None:
        self._inner = inner
        self._open, self._close = marks
        self._where = "inside" if opened else "before"
        self._buffer = ""
        self._gap = ""
        self._said = False
        self._read = 0  # characters taken off the buffer
        self.reasoned = 0

    @property
    def plain(self) -> bool:
        return self._where == "after" and self._inner.plain

    def push(self, text: str) -> list[Part]:
        """Take text in; the Parts that it completes."""
        if self._where == "after":
            return self._inner.push(text)
        self._buffer += text
        parts = self._before() if self._where == "before" else []
        parts += self._inside() if self._where == "inside" else []
        if self._where == "gap":
            parts += self._after()
        return parts

    def finish(self) -> list[Part]:
        """No more text comes: a mark that has only begun is text."""
        parts: list[Part] = []
        if self._where == "before":
            parts = self._inner.push(self._buffer)
        elif self._where == "inside":
            parts = self._think(self._buffer)
            self.reasoned = self._read + len(self._buffer)
        return parts + self._inner.finish()

    def _before(self) -> list[Part]:
        text = self._buffer.lstrip()
        if text.startswith(self._open):
            self._take(len(self._buffer) - len(text) + len(self._open))
            self._where = "inside"
            return []
        if self._open.startswith(text):
            return []
        return self._leave()

    def _inside(self) -> list[Part]:
        at = self._buffer.find(self._close)
        if at < 0:
            cut = len(self._buffer) - held(self._buffer, self._close)
            parts = self._think(self._buffer[:cut])
            self._take(cut)
            return parts
        parts = self._think(self._buffer[:at])
        self._take(at + len(self._close))
        self.reasoned = self._read
        self._where = "gap"
        return parts

    def _after(self) -> list[Part]:
        """Blanks behind the mark belong to neither."""
        self._buffer = self._buffer.lstrip()
        return self._leave() if self._buffer else []

    def _leave(self) -> list[Part]:
        text, self._buffer, self._where = self._buffer, "", "after"
        return self._inner.push(text)

    def _think(self, text: str) -> list[Part]:
        """Reasoning without the blanks at its ends."""
        if not self._said:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            self._gap += text
            return []
        part = Part("reasoning", self._gap + body)
        self._said, self._gap = True, text[len(body) :]
        return [part]

    def _take(self, n: int) -> None:
        self._read += n
        self._buffer = self._buffer[n:]
