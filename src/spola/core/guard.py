"""Guard: what may follow, and when to stop, for requests with stop strings or a grammar.

Declared here, implemented in ``text``, run on the engine thread only for the requests that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Guard"]


class Guard(Protocol):
    """A matcher that follows one request's generated ids.

    The engine feeds every committed id exactly once, in order. Implementations must be able to take the
    last ids back, so that drafts can be tried.
    """

    def mask(self, out: memoryview) -> bool:
        """Write the allowed next ids as bits into ``out`` (uint32[ceil(V / 32)]).

        Returns False, leaving ``out`` untouched, when everything is allowed.
        """

    def accept(self, ids: Sequence[int]) -> int | None:
        """Take generated ids in. None: go on. k: the request stops; the first k of ``ids`` are kept."""

    def rollback(self, n: int) -> None:
        """Forget the last ``n`` accepted ids."""
