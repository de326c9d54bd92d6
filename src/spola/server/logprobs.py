"""Log-probabilities in OpenAI's two shapes, in step with the text that is shown.

A token is listed once all of its text has been given out. What a stop string has cut off is not listed, of a
token that it cut in two only the visible part. Joined, the listed bytes are the bytes of the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spola.core.step import TokenLogprob
from spola.text.stream import Detokenizer
from spola.text.tokenizer import Tokenizer

__all__ = ["Listed", "Track", "chat_logprobs", "legacy_logprobs", "prompt_listed", "prompt_table"]

LEAST = -9999.0  # stands for minus infinity, which JSON lacks


@dataclass(frozen=True, slots=True)
class Listed:
    """A token as it is listed. ``data``: its visible bytes, None for one that is no text.

    ``start`` and ``end``: where its text is in the answer, in characters, whole ones.
    """

    id: int
    data: bytes | None
    start: int
    end: int
    entry: TokenLogprob | None  # None: the first token of a prompt


class Track:
    """Follows one choice. ``offset``: characters of text before the answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        visible: frozenset[int] = frozenset(),
        offset: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, visible=visible)
        self._hides = skip_special
        self._visible = visible
        self._end = offset  # of the text of all tokens taken
        self._given = offset  # of the text given out
        self._queue: deque[Listed] = deque()

    def push(
        self,
        ids: Sequence[int],
        entries: Sequence[TokenLogprob],
        text: str,
        *,
        last: bool = False,
        cut: bool = False,
    ) -> list[Listed]:
        """Take in tokens and the ``text`` given out with them; what can be listed now.

        ``last``: the answer ends here; ``cut``: because of a stop string.
        """
        for token, entry in zip(ids, entries, strict=True):
            start = self._end
            self._end += len(self._detokenizer.push((token,)))
            hidden = self._hides and token not in self._visible and self._tokenizer.is_special(token)
            data = None if hidden else self._tokenizer.token_bytes(token)
            # A character that is not whole yet will be one more.
            end = self._end + bool(self._detokenizer.state()[0])
            self._queue.append(Listed(token, data, start, end, entry))
        self._given += len(text)
        out: list[Listed] = []
        while self._queue and (self._queue[0].end <= self._given or (last and not cut)):
            out.append(self._queue.popleft())
        if last and self._queue and self._queue[0].start < self._given:
            out.append(self._trimmed(self._queue.popleft()))
        return out

    def count(self, ids: Iterable[int], chars: int) -> int:
        """How many of ``ids`` it takes for ``chars`` characters of text."""
        n = 0
        for token in ids:
            if self._end >= chars:
                break
            self._end += len(self._detokenizer.push((token,)))
            n += 1
        return n

    def _trimmed(self, token: Listed) -> Listed:
        """The visible part of a token that a stop string cuts in two."""
        data = token.data
        if data is not None:
            data = data.decode("utf-8", "ignore")[: self._given - token.start].encode()
        return Listed(token.id, data, token.start, self._given, token.entry)


def prompt_listed(
    tokenizer: Tokenizer, ids: Sequence[int], entries: Iterable[TokenLogprob], *, hidden_bos: bool
) -> list[Listed]:
    """The tokens of a prompt; ``hidden_bos``: the first is not in the text that was given."""
    detokenizer = Detokenizer(tokenizer, skip_special=False, start=True)
    out: list[Listed] = []
    end = 0
    for token, entry in zip(ids, (None, *entries), strict=True):
        start = end
        hide = hidden_bos and not out
        end += 0 if hide else len(detokenizer.push((token,)))
        out.append(Listed(token, None if hide else tokenizer.token_bytes(token), start, end, entry))
    return out


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[Listed], top: int) -> dict[str, Any]:
    """``logprobs`` of a chat choice or chunk."""
    return {"content": [_entry(tokenizer, token, top) for token in tokens], "refusal": None}


def _entry(tokenizer: Tokenizer, token: Listed, top: int) -> dict[str, Any]:
    assert token.entry is not None
    out = _named(tokenizer, token.id, token.entry.logprob)
    if token.data is None:
        out["bytes"] = None
    else:
        out["bytes"] = list(token.data)
        out["token"] = token.data.decode("utf-8", "replace")
    alternatives = [_named(tokenizer, id, value) for id, value in token.entry.top[:top]]
    return {**out, "top_logprobs": alternatives}


def _named(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    data = _bytes(tokenizer, token)
    text = data.decode("utf-8", "replace")
    return {"token": text, "logprob": max(value, LEAST), "bytes": list(data)}


def legacy_logprobs(tokenizer: Tokenizer, tokens: Sequence[Listed], top: int) -> dict[str, Any]:
    """``logprobs`` of a completion: four parallel lists.

    Tokens that are no text by themselves are written as ``bytes:\\xe6\\xad``, so that they stay apart.
    """
    return {
        "tokens": [_legacy(token.data if token.data is not None else b"") for token in tokens],
        "token_logprobs": [
            None if token.entry is None else max(token.entry.logprob, LEAST) for token in tokens
        ],
        "top_logprobs": [
            None if token.entry is None else _table(tokenizer, token.entry, top) for token in tokens
        ],
        "text_offset": [token.start for token in tokens],
    }


def _table(tokenizer: Tokenizer, entry: TokenLogprob, top: int) -> dict[str, float]:
    """The alternatives, and the chosen token too."""
    table: dict[str, float] = {}
    for token, value in (*entry.top[:top], (entry.id, entry.logprob)):
        table.setdefault(_legacy(_bytes(tokenizer, token)), max(value, LEAST))
    return table


def _legacy(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_table(
    tokenizer: Tokenizer, entries: Iterable[TokenLogprob], top: int
) -> list[dict[str, Any] | None]:
    """``prompt_logprobs`` as vLLM shows them: per token a map from ids, null for the first."""
    out: list[dict[str, Any] | None] = [None]
    for entry in entries:
        ranks = {token: rank for rank, (token, _) in enumerate(entry.top, start=1)}
        rows = {entry.id: entry.logprob} | dict(entry.top[:top])
        out.append(
            {
                str(token): {
                    "logprob": max(value, LEAST),
                    "rank": ranks.get(token),
                    "decoded_token": _bytes(tokenizer, token).decode("utf-8", "replace"),
                }
                for token, value in rows.items()
            }
        )
    return out


def _bytes(tokenizer: Tokenizer, token: int) -> bytes:
    # The raw distribution also has the rows that only pad the vocabulary; they have no text.
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
