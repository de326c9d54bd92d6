"""What an answer is made of: reasoning, content and tool calls, told apart while the text grows.

A Reader takes the text of one answer in pieces of any size and gives Parts; the same text gives the same
Parts, joined, however it is cut. ``PlainReader`` is for models whose answers are just text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Part", "PlainReader", "Reader"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer.

    ``call`` begins tool call number ``call`` (from 0) of the function ``name``; ``arguments`` is a piece of
    the JSON text of that call's arguments.
    """

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str = ""
    call: int = -1
    name: str = ""


class Reader(Protocol):
    """One answer's text to Parts. ``reasoned``: characters of the raw text that were reasoning.

    ``plain``: from now on all text is content, each piece given as it comes and nothing left to ``finish``.
    """

    @property
    def reasoned(self) -> int: ...
    @property
    def plain(self) -> bool: ...

    def push(self, text: str) -> list[Part]:
        """Take text in; the Parts that it completes."""

    def finish(self) -> list[Part]:
        """No more text comes: what was held back."""


class PlainReader:
    """All text is content."""

    reasoned = 0
    plain = True

    def push(self, text: str) -> list[Part]:
        return [Part("content", text)] if text else []

    def finish(self) -> list[Part]:
        return []
