"""GrammarGuard: a compiled grammar as the engine's Guard; and two guards as one.

Fails closed: a matcher in an error state ends the request with an error, never without its constraint.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spola.core.guard import Guard

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["BothGuards", "GrammarGuard"]

# Processor time that the masks of one request may take of the engine's thread: at once, and for each token.
BUDGET_S = 0.1
TOKEN_S = 0.005


class GrammarGuard:
    """Allows what the grammar does, and stops when nothing can follow.

    An answer that may go on goes on until the model ends it. Raises RuntimeError when the grammar proves too
    costly to follow; the engine turns that into the request's error.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._left = BUDGET_S

    def mask(self, out: memoryview) -> bool:
        """Always restricts. Ids beyond the tokenizer's are not allowed."""
        started = time.thread_time()
        bits = self._matcher.compute_bitmask()
        self._left -= time.thread_time() - started - TOKEN_S
        self._check()
        view = out.cast("B")
        n = min(len(view), len(bits))
        view[:n] = bits[:n]
        view[n:] = bytes(len(view) - n)
        return True

    def accept(self, ids: Sequence[int]) -> int | None:
        """Take generated ids in; returns how many of them are kept when the answer is complete, else None."""
        for i, token in enumerate(ids):
            if not self._matcher.consume_token(token):
                raise RuntimeError(f"token {token} is not in the grammar: {self._said()}")
            if self._matcher.is_stopped():
                # An end of text that completes the answer is no part of it.
                ended = self._matcher.stop_reason() == "EndOfSentence"
                return i if ended else i + 1
        return None

    def rollback(self, n: int) -> None:
        """Forget the last ``n`` accepted ids."""
        if n and not self._matcher.rollback(n):
            raise RuntimeError(f"cannot take back {n} tokens: {self._said()}")

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RuntimeError(self._said())
        self._left = min(self._left, BUDGET_S)
        if self._left < 0:
            raise RuntimeError("the grammar takes too long to follow")

    def _said(self) -> str:
        return " ".join(self._matcher.get_error().replace("<non-verbose/>", "").split())[:200]


class BothGuards:
    """Two guards at once: allowed is what both allow, and the first to stop stops."""

    def __init__(self, grammar: Guard, other: Guard) -> None:
        self._grammar = grammar
        self._other = other

    def mask(self, out: memoryview) -> bool:
        restricts = self._grammar.mask(out)
        if not restricts:
            return self._other.mask(out)
        mine = int.from_bytes(out, "little")
        if self._other.mask(out):
            both = mine & int.from_bytes(out, "little")
            out.cast("B")[:] = both.to_bytes(out.nbytes, "little")
        return True

    def accept(self, ids: Sequence[int]) -> int | None:
        """One id at a time goes to both, so that neither sees what the other has cut off."""
        for i, token in enumerate(ids):
            answers = [guard.accept((token,)) for guard in (self._grammar, self._other)]
            kept = [answer for answer in answers if answer is not None]
            if kept:
                return i + min(kept)
        return None

    def rollback(self, n: int) -> None:
        self._grammar.rollback(n)
        self._other.rollback(n)
