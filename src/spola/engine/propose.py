"""Proposers: guesses at the next tokens of a request, made from text that is already known.

A wrong guess costs a row of computing and never changes the output. A proposer decides what to guess; how
many guesses a step can afford is ``engine.speculate``'s business. No model and no I/O here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

__all__ = ["NGramProposer", "Proposer", "Text"]


class Text(Protocol):
    """What a proposer reads of a request: it only ever grows at its end."""

    id: int
    known: array[int]  # prompt and output
    n_prompt: int
    salt: str | None  # what keeps its text apart from others'


class Proposer(Protocol):
    """Drafts tokens. One thread calls it between steps; it may keep what it likes until ``forget``."""

    def propose(self, text: Text, most: int) -> Sequence[int]:
        """At most ``most`` ids that may follow ``text.known``; none is a fine answer."""

    def forget(self, text: Text) -> None:
        """``text`` is finished. Idempotent, also for a text that was never seen."""


class NGramProposer:
    """Prompt lookup: what followed the last ``n`` tokens the last time they occurred in the same request.

    ``longest`` down to ``shortest`` tokens are looked for, and the most recent occurrence counts. One map
    per length from n-gram to the position after its last occurrence, extended as the text grows: a constant
    number of operations per token and per proposal. A guess that runs into the end of the text reads on in
    itself, so that a loop is continued for as long as is asked.
    """

    def __init__(self, *, shortest: int = 2, longest: int = 4) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams of {shortest} to {longest} tokens")
        self._sizes = tuple(range(longest, shortest - 1, -1))
        self._index: dict[int, _Index] = {}

    def propose(self, text: Text, most: int) -> Sequence[int]:
        index = self._index.get(text.id)
        if index is None:
            index = self._index[text.id] = _Index(self._sizes)
        index.extend(text.known)
        at = index.find(text.known)
        return () if at is None else read_on(text.known, at, most)

    def forget(self, text: Text) -> None:
        self._index.pop(text.id, None)


class _Index:
    """Per length, where each n-gram of the first ``seen`` positions was last followed by something."""

    __slots__ = ("_after", "_seen")

    def __init__(self, sizes: Sequence[int]) -> None:
        self._after: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in sizes}
        self._seen = 0

    def extend(self, known: array[int]) -> None:
        """Take in the n-grams that end before the last token: only those have a token after them."""
        end = len(known) - 1
        for n, after in self._after.items():
            first = max(self._seen - n + 1, 0)  # start of the first n-gram that is new
            if first + n <= end:
                rows = [known[first + i : end - n + 1 + i] for i in range(n)]
                after.update(zip(zip(*rows, strict=True), range(first + n, end + 1), strict=True))
        self._seen = max(self._seen, end)

    def find(self, known: array[int]) -> int | None:
        for n, after in self._after.items():
            if len(known) > n:
                at = after.get(tuple(known[-n:]))
                if at is not None:
                    return at
        return None


def read_on(known: array[int], at: int, most: int) -> list[int]:
    """``most`` tokens from position ``at`` on; behind the end of ``known`` come those just read."""
    out = list(known[at : at + most])
    while len(out) < most:
        out.append(out[at + len(out) - len(known)])
    return out
