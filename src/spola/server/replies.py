"""Answers in OpenAI's shapes, whole or as chunks. One Shape per endpoint; nothing here waits or decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spola.runtime.answer import Choice, Delta, Job
from spola.server.logprobs import (
    Listed,
    Track,
    chat_logprobs,
    legacy_logprobs,
    prompt_listed,
    prompt_table,
)
from spola.server.shape import BaseShape, Echo, Style, whole_delta
from spola.server.sse import Frame, event
from spola.server.usage import usage
from spola.text.parts import Part, PlainReader, Reader

__all__ = ["ChatShape", "CompletionShape", "finish_reason"]


class CompletionShape(BaseShape):
    """/v1/completions. Choices count through the prompts; ``best_of`` above n keeps the n likeliest."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, style: Style, *, echo: Echo | None = None, n: int | None = None) -> None:
        super().__init__(style)
        self._echo = echo
        self._n = style.params.n if n is None else n
        self._plain = self._plain and (echo is None or not echo.only)
        self._begun: set[int] = set()

    def whole(self, jobs: Sequence[Job]) -> dict[str, Any]:
        choices = []
        for place, job in enumerate(jobs):
            for rank, choice in enumerate(self._best(job)):
                index = place * self._n + rank
                choices.append(self._piece(whole_delta(choice, index), place, job, first=True))
                if job.params.prompt_logprobs is not None and self._asked_prompt:
                    choices[-1]["prompt_logprobs"] = prompt_table(
                        self.style.tokenizer, job.choices[0].prompt_logprobs, job.params.prompt_logprobs
                    )
                choices[-1]["stop_reason"] = choice.stop_reason
        return self._whole(jobs, choices)

    def chunks(self, delta: Delta, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        first = delta.index not in self._begun
        listing = self.style.top is not None or self.style.token_ids or (first and self._echo is not None)
        if not (delta.text or delta.finish_reason or (listing and delta.token_ids)):
            return []
        self._begun.add(delta.index)
        place = delta.index // self.style.params.n
        piece = self._piece(delta, place, jobs[place], first=first)
        empty = not (piece["text"] or piece["finish_reason"] or piece.get("token_ids"))
        if empty and not (piece["logprobs"] and piece["logprobs"]["tokens"]):
            return []
        return [self._chunk(piece, jobs)]

    def events(self, delta: Delta, jobs: Sequence[Job]) -> bytes:
        index = delta.index
        if not self._plain or delta.finish_reason is not None or index not in self._begun:
            return super().events(delta, jobs)
        if not delta.text:
            return b""
        frame = self._frames.get(index)
        if frame is None:
            place = index // self.style.params.n

            def make(text: str) -> dict[str, Any]:
                return self._chunk(self._piece(Delta(index, text), place, jobs[place], first=False), jobs)

            frame = self._frames[index] = Frame(make)
        return frame(delta.text)

    @property
    def _asked_prompt(self) -> bool:
        return self._echo is None

    def _best(self, job: Job) -> list[Choice]:
        if self._n == len(job.choices):
            return job.choices

        def mean(choice: Choice) -> float:
            return sum(entry.logprob for entry in choice.logprobs) / max(1, len(choice.logprobs))

        return sorted(job.choices, key=mean, reverse=True)[: self._n]

    def _piece(self, delta: Delta, place: int, job: Job, *, first: bool) -> dict[str, Any]:
        echo, only = "", False
        if self._echo is not None:
            echo, only = self._echo.texts[place], self._echo.only
        if only:
            delta = Delta(delta.index, finish_reason=delta.finish_reason and "length")
        logprobs = None
        if self.style.top is not None:
            listed = self._list(delta.index, delta, len(echo))
            if first and echo:
                listed = [*self._prompt(place, job), *listed]
            logprobs = legacy_logprobs(self.style.tokenizer, listed, self.style.top)
        piece = {
            "index": delta.index,
            "text": (echo if first else "") + delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }
        if self.style.token_ids:
            piece["token_ids"] = list(delta.token_ids)
            if first:
                piece["prompt_token_ids"] = list(job.prompt_ids)
        return piece

    def _prompt(self, place: int, job: Job) -> list[Listed]:
        assert self._echo is not None
        tokenizer, ids = self.style.tokenizer, job.prompt_ids
        bos = tokenizer.bos_id
        hidden = bos is not None and ids[0] == bos
        hidden = hidden and not self._echo.texts[place].startswith(tokenizer.token_text(ids[0]))
        return prompt_listed(tokenizer, ids, job.choices[0].prompt_logprobs, hidden_bos=hidden)

    def _usage(self, jobs: Sequence[Job]) -> dict[str, Any]:
        return usage(jobs, generated=self._echo is None or not self._echo.only)


@dataclass(slots=True)
class _Told:
    """What a chat choice has said so far."""

    reader: Reader
    role: bool = False
    calls: int = 0
    text: dict[str, str] = field(default_factory=lambda: {"content": "", "reasoning": ""})


class ChatShape(BaseShape):
    """/v1/chat/completions. The role comes with the first text, so that it does not look like a token.

    Reasoning is told under both names that clients know: ``reasoning`` and ``reasoning_content``.
    """

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(
        self, style: Style, *, reader: Callable[[], Reader] = PlainReader, reasoning: bool = True
    ) -> None:
        super().__init__(style)
        self._reader = reader
        self._reasoning = reasoning
        self._told: dict[int, _Told] = {}
        self._reasoned = 0

    def whole(self, jobs: Sequence[Job]) -> dict[str, Any]:
        (job,) = jobs
        choices = [
            self._choice(whole_delta(choice, index), choice) for index, choice in enumerate(job.choices)
        ]
        answer = self._whole(jobs, choices)
        if job.params.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_table(
                self.style.tokenizer, job.choices[0].prompt_logprobs, job.params.prompt_logprobs
            )
        if self.style.token_ids:
            answer["prompt_token_ids"] = list(job.prompt_ids)
        return answer

    def chunks(self, delta: Delta, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        told = self._telling(delta.index)
        parts = told.reader.push(delta.text)
        if delta.finish_reason is not None:
            parts += told.reader.finish()
        return self._worded(delta, told, parts, jobs)

    def events(self, delta: Delta, jobs: Sequence[Job]) -> bytes:
        if not self._plain or delta.finish_reason is not None:
            return super().events(delta, jobs)
        told = self._telling(delta.index)
        parts = told.reader.push(delta.text)
        if not parts:
            return b""
        if not told.role or len(parts) > 1 or parts[0].kind != "content":
            return b"".join([event(chunk) for chunk in self._worded(delta, told, parts, jobs)])
        frame = self._frames.get(delta.index)
        if frame is None:
            plain = Delta(delta.index)

            def make(text: str) -> dict[str, Any]:
                (chunk,) = self._worded(plain, told, [Part("content", text)], jobs)
                return chunk

            frame = self._frames[delta.index] = Frame(make)
        return frame(parts[0].text)

    def frame(self, index: int) -> Frame | None:
        told = self._told.get(index)
        return self._frames.get(index) if told is not None and told.reader.plain else None

    def _telling(self, index: int) -> _Told:
        told = self._told.get(index)
        if told is None:
            told = self._told[index] = _Told(self._reader())
        return told

    def _worded(
        self, delta: Delta, told: _Told, parts: Sequence[Part], jobs: Sequence[Job]
    ) -> list[dict[str, Any]]:
        """The chunks that tell ``parts``, which ``delta`` has completed."""
        deltas = [self._delta(part, told, delta.index) for part in parts if self._shows(part)]
        listed = self._list(delta.index, delta)
        extra = listed or (self.style.token_ids and delta.token_ids)
        if extra and not deltas:
            deltas.append({})
        if not told.role and (deltas or delta.finish_reason):
            told.role = True
            head = {"role": "assistant", "content": ""}
            # With log-probabilities or ids the role rides on the first piece: one chunk for one token.
            deltas.insert(0, head)
        out: list[dict[str, Any]] = [
            {"index": delta.index, "delta": piece, "logprobs": None, "finish_reason": None}
            for piece in deltas
        ]
        if listed and self.style.top is not None:
            out[-1]["logprobs"] = chat_logprobs(self.style.tokenizer, listed, self.style.top)
        if self.style.token_ids and delta.token_ids and out:
            out[-1]["token_ids"] = list(delta.token_ids)
        if delta.finish_reason is not None:
            self._count(delta.index, told, jobs)
            reason = finish_reason(delta.finish_reason, told.calls)
            out.append({"index": delta.index, "delta": {}, "logprobs": None, "finish_reason": reason})
        return [self._chunk(piece, jobs) for piece in out]

    def _choice(self, delta: Delta, choice: Choice) -> dict[str, Any]:
        told = _Told(self._reader())
        calls: list[dict[str, Any]] = []
        for part in [*told.reader.push(delta.text), *told.reader.finish()]:
            if part.kind == "call":
                calls.append(self._call(delta.index, part))
            elif part.kind == "arguments":
                calls[part.call]["function"]["arguments"] += part.text
            else:
                told.text[part.kind] += part.text
        self._reasoned += _tokens_in(self.style, choice, told.reader.reasoned)
        content = told.text["content"]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if told.text["reasoning"] and self._reasoning:
            message |= {"reasoning": told.text["reasoning"], "reasoning_content": told.text["reasoning"]}
        if calls:
            message["tool_calls"] = calls
        logprobs = None
        if self.style.top is not None:
            listed = self._list(delta.index, delta)
            logprobs = chat_logprobs(self.style.tokenizer, listed, self.style.top)
        assert delta.finish_reason is not None
        out = {
            "index": delta.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason(delta.finish_reason, len(calls)),
            "stop_reason": choice.stop_reason,
        }
        return {**out, "token_ids": list(delta.token_ids)} if self.style.token_ids else out

    def _shows(self, part: Part) -> bool:
        return part.kind != "reasoning" or self._reasoning

    def _delta(self, part: Part, told: _Told, index: int) -> dict[str, Any]:
        match part.kind:
            case "content":
                return {"content": part.text}
            case "reasoning":
                return {"reasoning": part.text, "reasoning_content": part.text}
            case "call":
                told.calls += 1
                return {"tool_calls": [{"index": part.call, **self._call(index, part)}]}
            case "arguments":
                return {"tool_calls": [{"index": part.call, "function": {"arguments": part.text}}]}

    def _call(self, index: int, part: Part) -> dict[str, Any]:
        # The id follows from the answer's, so that answers that must be the same again are.
        seed = f"{self._head['id']} {index} {part.call}".encode()
        return {
            "id": f"call_{hashlib.blake2b(seed, digest_size=12).hexdigest()}",
            "type": "function",
            "function": {"name": part.name, "arguments": ""},
        }

    def _count(self, index: int, told: _Told, jobs: Sequence[Job]) -> None:
        (job,) = jobs
        self._reasoned += _tokens_in(self.style, job.choices[index], told.reader.reasoned)

    def _usage(self, jobs: Sequence[Job]) -> dict[str, Any]:
        return usage(jobs, reasoning=self._reasoned)


def finish_reason(reason: str, calls: int) -> str:
    """``tool_calls`` for an answer that ended by itself and calls a tool, also one that it had to call."""
    return "tool_calls" if reason == "stop" and calls else reason


def _tokens_in(style: Style, choice: Choice, chars: int) -> int:
    """How many tokens the first ``chars`` characters of a choice's text are."""
    if not chars:
        return 0
    track = Track(style.tokenizer, skip_special=style.params.skip_special_tokens, visible=style.visible)
    return track.count(choice.token_ids, chars)
