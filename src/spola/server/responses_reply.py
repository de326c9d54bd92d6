"""Answers in the words of OpenAI's Responses API, whole or as its events.

The last event holds the complete output, with the ids of the events before it: clients rely on both.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from spola.server.errors import ApiError
from spola.server.messages_reply import named_event
from spola.server.translate import End

__all__ = ["ResponsesReply"]

# Kind of item -> its part, the field of the part with the text, and the events of that text.
_PARTS = {
    "message": ("output_text", "response.output_text"),
    "reasoning": ("reasoning_text", "response.reasoning_text"),
}


class ResponsesReply:
    """Items open and close in order: reasoning, a message, then an item per tool call."""

    def __init__(self, model: str, request: Mapping[str, Any]) -> None:
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request["instructions"],
            "max_output_tokens": request["max_output_tokens"],
            "model": model,
            "output": [],
            "parallel_tool_calls": request["parallel_tool_calls"] is not False,
            "previous_response_id": None,
            "reasoning": request["reasoning"] or {"effort": None, "summary": None},
            "store": False,
            "temperature": request["temperature"],
            "text": request["text"] or {"format": {"type": "text"}},
            "tool_choice": "auto" if request["tool_choice"] is None else request["tool_choice"],
            "tools": request["tools"] or [],
            "top_logprobs": request["top_logprobs"] or 0,
            "top_p": request["top_p"],
            "truncation": "disabled",
            "usage": None,
            "user": request["user"],
            "metadata": request["metadata"] or {},
        }
        self._number = 0
        self._begun = False
        self._open: dict[str, Any] | None = None

    def piece(self, delta: Mapping[str, Any]) -> bytes:
        out = b""
        if delta.get("reasoning"):
            out += self._extend("reasoning", delta["reasoning"], [])
        logprobs = (delta.get("logprobs") or {}).get("content") or []
        if delta.get("content") or logprobs:
            out += self._extend("message", delta.get("content") or "", logprobs)
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if "name" in function:
                out += self._call(call["id"], function["name"])
            if function.get("arguments"):
                assert self._open is not None
                self._open["arguments"] += function["arguments"]
                out += self._told("response.function_call_arguments.delta", delta=function["arguments"])
        return out

    def end(self, end: End) -> bytes:
        cut = end.finish == "length"
        out = self._begin()
        if not self._response["output"]:
            out += self._extend("message", "", [])  # an answer of no text is one all the same
        out += self._close("incomplete" if cut else "completed")
        usage = end.usage
        self._response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
        }
        return out + self._event(f"response.{self._response['status']}", response=self._response)

    def ping(self) -> bytes:
        return b": ping\n\n"

    def failed(self, error: ApiError) -> bytes:
        code = error.code or error.kind
        self._response |= {"status": "failed", "error": {"code": code, "message": error.message}}
        out = self._begin()
        out += self._event("error", code=code, message=error.message, param=error.param)
        return out + self._event("response.failed", response=self._response)

    def whole(self) -> Any:
        return self._response

    def _event(self, event: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(event, {"sequence_number": number, **fields})

    def _told(self, event: str, /, **fields: Any) -> bytes:
        """An event about the item that is open."""
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self._response["output"]) - 1}
        if self._open["type"] != "function_call":
            where["content_index"] = 0
        return self._event(event, **where, **fields)

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        out = self._event("response.created", response=self._response)
        return out + self._event("response.in_progress", response=self._response)

    def _start(self, item: dict[str, Any]) -> bytes:
        out = self._begin() + self._close("completed")
        self._open = item
        self._response["output"].append(item)
        index = len(self._response["output"]) - 1
        return out + self._event("response.output_item.added", output_index=index, item=item)

    def _extend(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        part_kind, name = _PARTS[kind]
        out = b""
        if self._open is None or self._open["type"] != kind:
            part: dict[str, Any] = {"type": part_kind, "text": ""}
            item: dict[str, Any]
            if kind == "message":
                part |= {"annotations": [], "logprobs": []}
                item = {"id": _id("msg"), "type": kind, "role": "assistant", "status": "in_progress"}
            else:
                item = {"id": _id("rs"), "type": kind, "summary": [], "status": "in_progress"}
            out += self._start({**item, "content": []})
            assert self._open is not None
            self._open["content"].append(part)
            out += self._told("response.content_part.added", part=part)
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        if kind == "reasoning":
            return out + self._told(f"{name}.delta", delta=text)
        part["logprobs"] += logprobs
        return out + (self._told(f"{name}.delta", delta=text, logprobs=logprobs) if text or logprobs else b"")

    def _call(self, call_id: str, name: str) -> bytes:
        item = {
            "id": _id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": name,
            "arguments": "",
        }
        return self._start(item)

    def _close(self, status: str) -> bytes:
        item = self._open
        if item is None:
            return b""
        item["status"] = status
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            out = self._told("response.function_call_arguments.done", **told)
        else:
            part = item["content"][0]
            more = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            out = self._told(f"{_PARTS[item['type']][1]}.done", text=part["text"], **more)
            out += self._told("response.content_part.done", part=part)
        index = len(self._response["output"]) - 1
        out += self._event("response.output_item.done", output_index=index, item=item)
        self._open = None
        return out


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
