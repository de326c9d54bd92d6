"""Finds special tokens in text, in linear time: leftmost first, the longest at equal position.

Does not know which tokens are special or what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from spola.core.errors import ModelError

__all__ = ["SpecialScanner"]

_MAX_LENGTHS = 256  # tried at one place; real vocabularies have some thirty


class SpecialScanner:
    """Splits text at the texts of ``tokens`` (text -> id, no empty text).

    ``strip_right`` holds the ids that also swallow the whitespace behind them. Raises ModelError for a set
    of tokens that would make scanning slow.
    """

    def __init__(self, tokens: Mapping[str, int], strip_right: frozenset[int] = frozenset()) -> None:
        self._ids = dict(tokens)
        self._strip_right = strip_right
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        # Two characters tell most texts from a special token; then the possible lengths, longest first.
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        if max(map(len, self._lengths.values()), default=0) > _MAX_LENGTHS:
            raise ModelError(
                f"tokenizer.ggml.tokens : special tokens with one beginning have over {_MAX_LENGTHS} lengths"
            )
        first = "".join(sorted({re.escape(text[0]) for text in self._ids}))
        self._candidate = re.compile(f"[{first}]") if first else None

    def split(self, text: str) -> list[str | int]:
        """``text`` as a list of plain pieces (never empty) and token ids, in order."""
        if self._candidate is None:
            return [text] if text else []
        parts: list[str | int] = []
        done = at = 0
        while True:
            found = self._candidate.search(text, at)
            if found is None:
                break
            at = found.start()
            token, length = self._match(text, at)
            if token < 0:
                at += 1
                continue
            if at > done:
                parts.append(text[done:at])
            parts.append(token)
            at += length
            if token in self._strip_right:
                while at < len(text) and text[at] in " \t\n\v\f\r":
                    at += 1
            done = at
        if done < len(text):
            parts.append(text[done:])
        return parts

    def broken(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` behind the first character of every place where a token is spelled.

        Tokens of one character are left as they are.
        """
        if self._candidate is None:
            return text
        out, done = [], 0
        for found in self._candidate.finditer(text):
            at = found.start()
            if self._match(text, at)[1] > 1:
                out += [text[done : at + 1], mark]
                done = at + 1
        return "".join([*out, text[done:]])

    def _match(self, text: str, at: int) -> tuple[int, int]:
        for start in (text[at : at + 2], text[at]):
            for length in self._lengths.get(start, ()):
                token = self._ids.get(text[at : at + length])
                if token is not None:
                    return token, length
        return -1, 0
