"""Answers in the words of text-generation-inference: whole, or an event for each token.

Texts of tokens, joined, are the generated text: a character that several tokens make belongs to the first of
them. The token that ended the answer is told last, as a special one without text of its own in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spola.core.step import TokenLogprob
from spola.runtime.answer import Job
from spola.server.errors import ApiError, worded
from spola.server.logprobs import LEAST, Listed
from spola.server.pieces import entry_of
from spola.server.sse import PING, event
from spola.server.translate import End
from spola.text.tokenizer import Tokenizer

__all__ = ["TgiReply", "Wanted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is told beside the text. ``listed``: a whole answer is in a list. ``prompt`` comes before it."""

    tokenizer: Tokenizer
    prompt: str = ""
    details: bool = False
    prefill: bool = False
    top: int = 0
    seed: int | None = None
    listed: bool = False


class TgiReply:
    """One token is held back: with the last one the whole text is told."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._text = ""
        self._shown = 0  # characters of the text that tokens have told
        self._tokens: list[dict[str, Any]] = []
        self._tops: list[list[dict[str, Any]]] = []
        self._sent = 0
        self._whole: dict[str, Any] = {}

    def piece(self, delta: Mapping[str, Any]) -> bytes:
        self._text += delta["content"]
        for token in delta["listed"]:
            self._take(token)
        if delta["ended"] is not None:
            self._take_end(delta["ended"])
        return b"".join(event(row) for row in self._rows(len(self._tokens) - 1))

    def end(self, end: End) -> bytes:
        job = end.jobs[0]
        details = {
            "finish_reason": _reason(end),
            "generated_tokens": end.usage["completion_tokens"],
            "seed": self._wanted.seed,
        }
        text = self._wanted.prompt + self._text
        self._whole = {"generated_text": text}
        if self._wanted.details:
            more = {"prefill": self._prefill(job), "tokens": self._tokens}
            tops = {"top_tokens": self._tops} if self._wanted.top else {}
            self._whole["details"] = {**details, **more, **tops}
        rows = list(self._rows(len(self._tokens)))
        if rows:
            rows[-1] |= {"generated_text": text, "details": {**details, "input_length": len(job.prompt_ids)}}
        return b"".join(map(event, rows))

    def ping(self) -> bytes:
        return PING

    def failed(self, error: ApiError) -> bytes:
        return event(worded(error, "/generate"))

    def whole(self) -> Any:
        return [self._whole] if self._wanted.listed else self._whole

    def _take(self, token: Listed) -> None:
        text = self._text[self._shown : token.end]
        self._shown = max(self._shown, token.end)
        self._add(token.id, text, *entry_of(token))

    def _take_end(self, entry: TokenLogprob) -> None:
        self._add(entry.id, self._name(entry.id), entry.logprob, entry.top)

    def _add(self, id: int, text: str, logprob: float, top: Sequence[tuple[int, float]]) -> None:
        self._tokens.append(self._token(id, text, logprob))
        self._tops.append([self._token(id, self._name(id), value) for id, value in top[: self._wanted.top]])

    def _token(self, id: int, text: str, logprob: float) -> dict[str, Any]:
        tokenizer = self._wanted.tokenizer
        special = id >= tokenizer.vocab_size or tokenizer.is_special(id)
        return {"id": id, "text": text, "logprob": max(logprob, LEAST), "special": special}

    def _name(self, id: int) -> str:
        tokenizer = self._wanted.tokenizer
        return tokenizer.token_text(id) if id < tokenizer.vocab_size else ""

    def _rows(self, upto: int) -> Iterator[dict[str, Any]]:
        for place in range(self._sent, max(upto, self._sent)):
            row = {"index": place + 1, "token": self._tokens[place], "generated_text": None, "details": None}
            yield {**row, "top_tokens": self._tops[place]} if self._wanted.top else row
        self._sent = max(upto, self._sent)

    def _prefill(self, job: Job) -> list[dict[str, Any]]:
        if not self._wanted.prefill:
            return []
        values = [None, *(max(one.logprob, LEAST) for one in job.choices[0].prompt_logprobs)]
        return [
            {"id": id, "text": self._name(id), "logprob": value}
            for id, value in zip(job.prompt_ids, values, strict=True)
        ]


def _reason(end: End) -> str:
    if end.finish == "length":
        return "length"
    return "stop_sequence" if isinstance(end.stop, str) else "eos_token"
