"""Answers in the words of Ollama's /api/chat and /api/generate, whole or a line of JSON for each piece.

Durations are in nanoseconds. A call is told once its arguments are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from spola.server.errors import ApiError, worded
from spola.server.translate import End

__all__ = ["OllamaReply", "loaded", "now"]

_PARTS = {"queue": "queue_s", "prefill": "prefill_s", "decode": "decode_s", "total": "total_s"}


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def loaded(model: str, *, chat: bool) -> dict[str, Any]:
    """The answer to a request without a question: the model is loaded."""
    said: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    return {"model": model, "created_at": now(), **said, "done_reason": "load", "done": True}


class OllamaReply:
    """``chat``: text is in ``message.content``, else in ``response``."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat
        self._text = self._thinking = ""
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[Any] = []
        self._open: dict[str, Any] | None = None
        self._last: dict[str, Any] = {}

    def piece(self, delta: Mapping[str, Any]) -> bytes:
        out = b""
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if "name" in function:
                out += self._close()
                self._open = {"id": call["id"], "name": function["name"], "arguments": ""}
            if self._open is not None:
                self._open["arguments"] += function.get("arguments") or ""
        text, thinking = delta.get("content") or "", delta.get("reasoning") or ""
        entries = (delta.get("logprobs") or {}).get("content") or []
        self._text += text
        self._thinking += thinking
        self._logprobs += entries
        if not (text or thinking or entries):
            return out
        return out + self._line(self._said(text, thinking, [], entries))

    def end(self, end: End) -> bytes:
        out = self._close()
        timing = end.usage.get("timing", {})
        took = {name: round(timing.get(key, 0) * 1e9) for name, key in _PARTS.items()}
        self._last = {
            "done": True,
            "done_reason": "length" if end.finish == "length" else "stop",
            "total_duration": took["total"],
            "load_duration": 0,
            "prompt_eval_count": end.usage["prompt_tokens"],
            "prompt_eval_duration": took["prefill"],
            "eval_count": end.usage["completion_tokens"],
            "eval_duration": took["decode"],
        }
        return out + self._line({**self._said("", "", [], []), **self._last})

    def ping(self) -> bytes:
        return self._line(self._said("", "", [], []))

    def failed(self, error: ApiError) -> bytes:
        return msgspec.json.encode(worded(error, "/api/chat")) + b"\n"

    def whole(self) -> Any:
        said = self._said(self._text, self._thinking, self._calls, self._logprobs)
        return {"model": self._model, "created_at": now(), **said, **self._last}

    def _said(self, text: str, thinking: str, calls: list[Any], entries: list[Any]) -> dict[str, Any]:
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = calls
        listed = {"logprobs": [_entry(one) for one in entries]} if entries else {}
        if self._chat:
            return {"message": {"role": "assistant", "content": text, **more}, "done": False, **listed}
        return {"response": text, **more, "done": False, **listed}

    def _close(self) -> bytes:
        """The call whose arguments have come, if there is one."""
        call, self._open = self._open, None
        if call is None:
            return b""
        try:
            arguments = msgspec.json.decode(call["arguments"] or "{}")
        except msgspec.DecodeError:
            arguments = {}  # the answer was cut in the middle of it
        told = {"id": call["id"], "function": {"name": call["name"], "arguments": arguments}}
        self._calls.append(told)
        return self._line(self._said("", "", [told], []))

    def _line(self, value: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"model": self._model, "created_at": now(), **value}) + b"\n"


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token of a chat's ``logprobs.content``; its alternatives are left out where there are none."""
    return {name: value for name, value in entry.items() if name != "top_logprobs" or value}
