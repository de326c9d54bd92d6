"""SuffixProposer: what followed the longest earlier occurrences of the text's end, where they agree.

After suffix decoding (Oliaro et al., arXiv 2411.04975): the text of a request and the recent answers of
others are searched for the longest match with the end of the text, and the guess goes on for as long as the
matches found make it likely. Where that work keeps a tree with counts, this keeps an index of short n-grams
with chains of earlier positions, and counts over the last few occurrences: a few integers per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from spola.engine.propose import Text

__all__ = ["SuffixProposer"]

_NONE = -1  # no earlier occurrence; also between two answers in the history


class SuffixProposer:
    """Guesses by vote.

    ``shortest`` tokens at least must match, up to ``deepest`` are compared, at most ``votes`` of the most
    recent occurrences count. A guess ends before the token with which the product of vote shares falls
    below ``min_share``. The last ``history`` generated tokens of finished requests without a salt are, for
    such requests, searched too: they change how fast an answer comes, never what it says.
    """

    def __init__(
        self,
        *,
        shortest: int = 2,
        deepest: int = 24,
        votes: int = 8,
        min_share: float = 0.3,
        history: int = 1 << 15,
    ) -> None:
        if not 1 <= shortest <= deepest:
            raise ValueError(f"matches of {shortest} to {deepest} tokens")
        self._shortest = shortest
        self._deepest = deepest
        self._votes = votes
        self._min_share = min_share
        self._keep = history
        self._texts: dict[int, _Chains] = {}
        self._history = _Chains(shortest)

    def propose(self, text: Text, most: int) -> Sequence[int]:
        own = self._texts.get(text.id)
        if own is None:
            own = self._texts[text.id] = _Chains(self._shortest)
        own.extend(text.known[len(own.ids) :])
        end = own.ids[-self._deepest :]
        found = [(*match, own) for match in own.matches(end, self._votes, len(own.ids))]
        history = self._history if text.salt is None else _Chains(self._shortest)
        found += [(*match, history) for match in history.matches(end, self._votes, len(history.ids) + 1)]
        longest = max((length for length, _, _ in found), default=0)
        places = [(at, chains) for length, at, chains in found if length == longest]
        return self._vote(places, min(most, longest))

    def forget(self, text: Text) -> None:
        if self._texts.pop(text.id, None) is None or not self._keep or text.salt is not None:
            return
        history = self._history
        history.extend(array("i", [_NONE]))
        history.extend(text.known[text.n_prompt :][-self._keep :])
        if len(history.ids) > 2 * self._keep:
            self._history = _Chains(self._shortest)
            self._history.extend(history.ids[-self._keep :])

    def _vote(self, places: list[tuple[int, _Chains]], most: int) -> list[int]:
        """Walk from all ``places`` at once, at each token with the majority; ties go to the more recent."""
        out: list[int] = []
        share = 1.0
        while places and len(out) < most:
            follows: dict[int, list[tuple[int, _Chains]]] = {}
            for at, chains in places:
                if at < len(chains.ids) and chains.ids[at] != _NONE:
                    follows.setdefault(chains.ids[at], []).append((at + 1, chains))
            if not follows:
                break
            token, agree = max(follows.items(), key=lambda item: len(item[1]))
            share *= len(agree) / len(places)
            if share < self._min_share:
                break
            out.append(token)
            places = agree
        return out


class _Chains:
    """A text and, for every position, the last earlier one that follows the same ``n`` tokens."""

    __slots__ = ("_last", "_n", "_previous", "ids")

    def __init__(self, n: int) -> None:
        self.ids = array("i")
        self._n = n
        self._last: dict[tuple[int, ...], int] = {}
        self._previous = array("i", [_NONE])  # entry p: of the position p, which follows ids[:p]

    def extend(self, more: array[int]) -> None:
        n, ids = self._n, self.ids
        for token in more:
            ids.append(token)
            at = len(ids)
            if at < n:
                self._previous.append(_NONE)
                continue
            key = tuple(ids[-n:])
            self._previous.append(self._last.get(key, _NONE))
            self._last[key] = at

    def matches(self, end: array[int], most: int, before: int) -> list[tuple[int, int]]:
        """(length, position after it) of the latest ``most`` occurrences of the last tokens of ``end``.

        Only positions below ``before``; a length is at most that of ``end``.
        """
        out: list[tuple[int, int]] = []
        if len(end) < self._n:
            return out
        at = self._last.get(tuple(end[-self._n :]), _NONE)
        while at != _NONE and len(out) < most:
            if at < before:
                length = self._n
                bound = min(len(end), at)
                while length < bound and self.ids[at - length - 1] == end[-length - 1]:
                    length += 1
                out.append((length, at))
            at = self._previous[at]
        return out
