"""Ids to text as they come, exact to the byte.

A token may end inside a character or hold the end of one and the start of the next, so bytes go through
an incremental UTF-8 decoder; at most three bytes wait. Joined deltas equal the text decoded at once.
Stop strings are in ``text.stops``.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

__all__ = ["Detokenizer", "TokenBytes"]

_decoder = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer."""

    @property
    def strips_first_space(self) -> bool: ...
    def token_bytes(self, token: int) -> bytes: ...
    def is_special(self, token: int) -> bool: ...


class Detokenizer:
    """Turns ids into text piece by piece.

    Ill-formed bytes become U+FFFD, one for each maximal subpart (Unicode 15, section 3.9; the WHATWG
    decoder), as soon as they are known to be ill-formed. ``start``: the ids begin a text, so the space
    that SentencePiece models put before a text is taken off; leave it False for what continues a prompt,
    where a first space is the model's own. ``visible`` are special ids that are text all the same.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        skip_special: bool = True,
        start: bool = False,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._visible = visible
        self._strip = start and tokenizer.strips_first_space
        self._decoder = _decoder("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; may be empty. Raises RequestError for an id of no token."""
        data = b"".join([self._piece(token) for token in ids])
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What the bytes still waiting give: empty or one U+FFFD."""
        return self._decoder.decode(b"", True)

    def state(self) -> tuple[bytes, bool]:
        """A small value that ``restore`` takes back, for tokens that are tried and withdrawn."""
        return self._decoder.getstate()[0], self._strip

    def restore(self, state: tuple[bytes, bool]) -> None:
        pending, self._strip = state
        self._decoder.setstate((pending, 0))

    def _piece(self, token: int) -> bytes:
        if self._tokenizer.is_special(token):
            hidden = self._skip_special and token not in self._visible
            return b"" if hidden else self._tokenizer.token_bytes(token)
        data = self._tokenizer.token_bytes(token)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return data
