"""A stretch of text between special tokens, on its way into a codec."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Piece"]


class Piece(NamedTuple):
    """``opens``: the piece begins the text or follows a special token. ``first``: it begins the text."""

    text: str
    opens: bool
    first: bool
