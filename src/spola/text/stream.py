"""Ids to text as they come, exact to the byte.

A token may end inside a character or hold the end of one and the start of the next, so bytes go through
an incremental UTF-8 decoder; at most three bytes wait. Joined deltas equal the text decoded at once.
Stop strings are in ``text.stops``.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Iterable
from typing import Protocol

__all__ = ["Detokenizer", "TokenBytes"]


class TokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer; ``text_bytes`` are empty for a special token."""

    @property
    def strips_first_space(self) -> bool: ...
    def token_bytes(self, token: int) -> bytes: ...
    def text_bytes(self, token: int) -> bytes: ...
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
        self._visible = visible
        self._strip = start and tokenizer.strips_first_space
        self._waits = b""  # the beginning of a character
        self._bytes: Callable[[int], bytes]
        if not skip_special:
            self._bytes = tokenizer.token_bytes
        elif visible:
            self._bytes = self._shown
        else:
            self._bytes = tokenizer.text_bytes

    def push(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; may be empty. Raises RequestError for an id of no token."""
        piece = self._stripped if self._strip else self._bytes
        if not self._waits and type(ids) is tuple and len(ids) == 1:
            data = piece(ids[0])  # as nearly always
            text, used = utf_8_decode(data, "replace", False)
            if used != len(data):
                self._waits = data[used:]
            return text
        return self._decode(b"".join([piece(token) for token in ids]))

    def finish(self) -> str:
        """What the bytes still waiting give: empty or one U+FFFD."""
        return self._decode(b"", final=True)

    def state(self) -> tuple[bytes, bool]:
        """A small value that ``restore`` takes back, for tokens that are tried and withdrawn."""
        return self._waits, self._strip

    def restore(self, state: tuple[bytes, bool]) -> None:
        self._waits, self._strip = state

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        data = self._waits + data
        text, used = utf_8_decode(data, "replace", final)
        self._waits = data[used:]
        return text

    def _shown(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        return tokenizer.token_bytes(token) if token in self._visible else tokenizer.text_bytes(token)

    def _stripped(self, token: int) -> bytes:
        data = self._bytes(token)
        if self._strip and data and not self._tokenizer.is_special(token):
            self._strip = False
            data = data.removeprefix(b" ")
        return data
