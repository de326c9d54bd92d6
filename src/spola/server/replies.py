"""Answers in OpenAI's shapes, whole or as chunks. One Shape per endpoint; nothing here waits or decides."""

from __future__ import annotations

import secrets
import time
from typing import Any, Protocol

from spola.runtime.answer import Job

__all__ = ["ChatShape", "CompletionShape", "Shape", "usage"]


def usage(job: Job) -> dict[str, Any]:
    prompt, completion = len(job.prompt_ids), job.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


class Shape(Protocol):
    """How an endpoint words an answer. ``include_usage``: a stream ends with the usage."""

    include_usage: bool

    def whole(self, job: Job) -> dict[str, Any]:
        """The finished answer as one object."""

    def chunks(self, index: int, text: str, finish: str | None) -> list[dict[str, Any]]:
        """A piece of choice ``index`` as zero or more chunks."""

    def usage_chunk(self, job: Job) -> dict[str, Any]:
        """The chunk after the last piece, for ``include_usage``."""


class _Base:
    kind = ""
    chunk_kind = ""
    prefix = ""

    def __init__(self, model: str, fingerprint: str, *, include_usage: bool = False) -> None:
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self.include_usage = include_usage

    def _whole(self, job: Job, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage(job)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_kind, "choices": choices}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def usage_chunk(self, job: Job) -> dict[str, Any]:
        return {**self._chunk([]), "usage": usage(job)}


class CompletionShape(_Base):
    """/v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def whole(self, job: Job) -> dict[str, Any]:
        return self._whole(job, [self._choice(c.index, c.text, c.finish_reason) for c in job.choices])

    def chunks(self, index: int, text: str, finish: str | None) -> list[dict[str, Any]]:
        return [self._chunk([self._choice(index, text, finish)])] if text or finish else []

    @staticmethod
    def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


class ChatShape(_Base):
    """/v1/chat/completions. The role comes with the first text, so that it does not look like a token."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(self, model: str, fingerprint: str, *, include_usage: bool = False) -> None:
        super().__init__(model, fingerprint, include_usage=include_usage)
        self._begun: set[int] = set()

    def whole(self, job: Job) -> dict[str, Any]:
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": None,
                "finish_reason": choice.finish_reason,
            }
            for choice in job.choices
        ]
        return self._whole(job, choices)

    def chunks(self, index: int, text: str, finish: str | None) -> list[dict[str, Any]]:
        deltas: list[tuple[dict[str, str], str | None]] = []
        if (text or finish) and index not in self._begun:
            self._begun.add(index)
            deltas.append(({"role": "assistant", "content": ""}, None))
        if text:
            deltas.append(({"content": text}, None))
        if finish:
            deltas.append(({}, finish))
        return [
            self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}])
            for delta, reason in deltas
        ]
