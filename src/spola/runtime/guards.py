"""A Guard for models whose output has more rows than the tokenizer has tokens.

Rows that only fill a table up to a round size must never be drawn; nothing else knows about them. Wraps the
request's own guard, if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence

from spola.core.guard import Guard
from spola.text.tokenizer import Tokenizer

__all__ = ["PaddingGuard", "real_tokens"]


def real_tokens(tokenizer: Tokenizer, vocab: int) -> bytes | None:
    """Bits (uint32[ceil(vocab / 32)]) of the ids that are tokens; None if all ``vocab`` are."""
    padding = tokenizer.padding_ids
    if tokenizer.vocab_size >= vocab and not padding:
        return None
    bits = (1 << min(tokenizer.vocab_size, vocab)) - 1
    for token in padding:
        bits &= ~(1 << token)
    return bits.to_bytes(4 * ((vocab + 31) // 32), "little")


class PaddingGuard:
    """Allows the ids of ``allowed`` (see ``real_tokens``) and of these what ``inner`` allows."""

    def __init__(self, allowed: bytes, inner: Guard | None = None) -> None:
        self._allowed = allowed
        self._inner = inner

    def mask(self, out: memoryview) -> bool:
        """Always restricts."""
        view = out.cast("B")
        if self._inner is not None and self._inner.mask(out):
            both = int.from_bytes(view, "little") & int.from_bytes(self._allowed, "little")
            view[:] = both.to_bytes(len(view), "little")
        else:
            view[:] = self._allowed
        return True

    def accept(self, ids: Sequence[int]) -> int | None:
        return None if self._inner is None else self._inner.accept(ids)

    def rollback(self, n: int) -> None:
        if self._inner is not None:
            self._inner.rollback(n)
