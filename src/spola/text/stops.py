"""Stop strings: where a text ends, decided exactly while it grows.

``StopMatcher`` works on text; ``StopGuard`` is the engine's view of the same matcher over ids, so that
what the engine keeps and what a stream sends agree. Stop *tokens* are the engine's own business.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from spola.text.stream import Detokenizer, TokenBytes

__all__ = ["StopGuard", "StopMatcher", "TextStream"]

_MAX_ROLLBACK = 1024  # tokens that a guard can take back


class StopMatcher:
    """Finds the first stop string in a text that grows.

    The match that starts first wins; at equal position the longest. Text is released as soon as it can
    no longer belong to a match. Without ``include_stop`` the text ends before the match and the decision
    falls when the first stop at the earliest position is complete; with it, the match is part of the text,
    and a longer stop that has begun at the same position is waited for.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._stops = sorted(set(stops), key=len)
        self._include = include_stop
        first = "".join(sorted({re.escape(stop[0]) for stop in self._stops}))
        self._candidate = re.compile(f"[{first}]", re.DOTALL) if first else None
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take ``text`` in; returns what is released by it. After a match everything is swallowed."""
        if self.matched is not None or not text:
            return ""
        return self._advance(self._held + text, final=False)

    def finish(self) -> str:
        """No more text comes: release the rest, cut at a match that was only waiting for a rival."""
        if self.matched is not None:
            return ""
        return self._advance(self._held, final=True)

    def state(self) -> tuple[str, str | None]:
        return self._held, self.matched

    def restore(self, state: tuple[str, str | None]) -> None:
        self._held, self.matched = state

    def _advance(self, text: str, *, final: bool) -> str:
        """Scan ``text`` (held and new) for the first place where a stop is complete or may become so."""
        self._held = ""
        at = -1
        while self._candidate is not None:
            found = self._candidate.search(text, at + 1)
            if found is None:
                break
            at = found.start()
            complete = [stop for stop in self._stops if text.startswith(stop, at)]
            rest = text[at:]
            open_ended = not final and any(len(s) > len(rest) and s.startswith(rest) for s in self._stops)
            if complete and not (open_ended and self._include):
                self.matched = complete[-1] if self._include else complete[0]
                return text[: at + len(self.matched)] if self._include else text[:at]
            if open_ended:
                self._held = rest
                return text[:at]
        return text


class TextStream:
    """The text of one generation with stop strings: what may be sent now, and whether to stop.

    ``push`` gives text that no stop can take back; the rest waits. Once ``stopped`` is True, further ids
    are ignored. The same ids give the same text however they are divided among calls.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special: bool = True,
        start: bool = False,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, start=start, visible=visible)
        self._matcher = StopMatcher(stops, include_stop=include_stop) if stops else None
        self.stopped = False

    @property
    def way(self) -> Callable[[Iterable[int]], str]:
        """``push``, the shortest way: to be kept by whoever calls it for every token."""
        return self._detokenizer.push if self._matcher is None else self.push

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matcher.matched if self._matcher else None

    def push(self, ids: Iterable[int]) -> str:
        """The text that can be sent now."""
        if self._matcher is None:
            return self._detokenizer.push(ids)
        out = []
        for token in ids:
            # One token at a time: the decision must not depend on how many came together.
            out.append(self._matcher.push(self._detokenizer.push((token,))))
            if self._matcher.matched is not None:
                self.stopped = True
                break
        return "".join(out)

    def finish(self) -> str:
        """The rest of the text. A stop that was waiting for a longer rival may still cut it here."""
        tail = self._detokenizer.finish()
        if self._matcher is None:
            return tail
        if self._matcher.matched is not None:
            return ""
        rest = self._matcher.push(tail) + self._matcher.finish()
        self.stopped = self._matcher.matched is not None
        return rest


class StopGuard:
    """``core.guard.Guard`` for stop strings: restricts no token, says when the text has ended.

    Follows the same rules as ``TextStream`` over the same ids: the token with which the decision falls is
    the last one kept.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stops: Sequence[str],
        *,
        include_stop: bool = False,
        skip_special: bool = True,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, visible=visible)
        self._matcher = StopMatcher(stops, include_stop=include_stop)
        self._past: deque[tuple[tuple[bytes, bool], tuple[str, str | None]]] = deque(maxlen=_MAX_ROLLBACK)

    def mask(self, out: memoryview) -> bool:
        """False: every token is allowed."""
        return False

    def accept(self, ids: Sequence[int]) -> int | None:
        """Take generated ids in; returns how many of them are kept when the text ends, else None."""
        for i, token in enumerate(ids):
            self._past.append((self._detokenizer.state(), self._matcher.state()))
            self._matcher.push(self._detokenizer.push((token,)))
            if self._matcher.matched is not None:
                return i + 1
        return None

    def rollback(self, n: int) -> None:
        """Forget the last ``n`` accepted ids. Raises ValueError beyond the ids it remembers."""
        if n < 0 or n > len(self._past):
            raise ValueError(f"cannot take back {n} tokens; {len(self._past)} are remembered")
        if n == 0:
            return
        for _ in range(n):
            detokenizer, matcher = self._past.pop()
        self._detokenizer.restore(detokenizer)
        self._matcher.restore(matcher)
