"""Answers in the words of Anthropic's Messages API, whole or as its events."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from spola.server.errors import ApiError, worded
from spola.server.translate import End

__all__ = ["MessagesReply", "named_event"]

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def named_event(name: str, value: Mapping[str, Any]) -> bytes:
    """A server-sent event with a name; its data has the name as ``type``."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode({"type": name, **value}))


class MessagesReply:
    """Blocks open and close in order: thinking, text, then a block per tool call."""

    def __init__(self, model: str, n_prompt: int) -> None:
        usage = {"input_tokens": n_prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 0},
        }
        self._begun = False
        self._open: dict[str, Any] | None = None
        self._arguments = ""

    def piece(self, delta: Mapping[str, Any]) -> bytes:
        out = b""
        if delta.get("reasoning"):
            out += self._extend("thinking", delta["reasoning"], "thinking_delta")
        if delta.get("content"):
            out += self._extend("text", delta["content"], "text_delta")
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if "name" in function:
                out += self._close()
                block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
                out += self._start(block)
            if function.get("arguments"):
                self._arguments += function["arguments"]
                out += self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
        return out

    def end(self, end: End) -> bytes:
        out = self._begin() + self._close()
        prompt, cached = end.usage["prompt_tokens"], end.usage["prompt_tokens_details"]["cached_tokens"]
        usage = self._message["usage"]
        usage["input_tokens"], usage["cache_read_input_tokens"] = prompt - cached, cached
        usage["output_tokens"] = end.usage["completion_tokens"]
        stops: dict[str, Any] = {"stop_reason": _STOPS[end.finish], "stop_sequence": None}
        if end.finish == "stop" and isinstance(end.stop, str):
            stops = {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
        self._message |= stops
        out += named_event("message_delta", {"delta": stops, "usage": usage})
        return out + named_event("message_stop", {})

    def ping(self) -> bytes:
        return named_event("ping", {})

    def failed(self, error: ApiError) -> bytes:
        return named_event("error", {"error": worded(error, "/v1/messages")["error"]})

    def whole(self) -> Any:
        return self._message

    def _begin(self) -> bytes:
        """The head comes with the first block: before it there is nothing to tell."""
        if self._begun:
            return b""
        self._begun = True
        return named_event("message_start", {"message": {**self._message, "content": []}})

    def _start(self, block: dict[str, Any]) -> bytes:
        out = self._begin()
        self._message["content"].append(block)
        self._open, self._arguments = block, ""
        return out + named_event("content_block_start", {"index": self._index, "content_block": dict(block)})

    def _extend(self, kind: str, text: str, delta: str) -> bytes:
        out = b""
        if self._open is None or self._open["type"] != kind:
            out += self._close()
            out += self._start({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        assert self._open is not None
        self._open[kind] += text
        return out + self._delta({"type": delta, kind: text})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return named_event("content_block_delta", {"index": self._index, "delta": delta})

    def _close(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        if block["type"] == "tool_use":
            block["input"] = _object(self._arguments)
        return named_event("content_block_stop", {"index": self._index})

    @property
    def _index(self) -> int:
        return len(self._message["content"]) - 1


def _object(text: str) -> dict[str, Any]:
    """The arguments; of a call that was cut, none: half an object is no input."""
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
