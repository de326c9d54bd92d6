"""Messages and tools of Ollama's /api/chat as those of an OpenAI chat.

Ollama's calls have arguments as objects and, in older clients, no ids: a result belongs to the first call of
its tool's name that has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from spola.server.errors import ApiError

__all__ = ["chat_messages", "chat_tools"]


def chat_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Raises ApiError naming the field."""
    open_calls: list[tuple[str, str]] = []  # (id, name) of calls without a result
    return [_message(message, f"messages[{i}]", open_calls) for i, message in enumerate(messages)]


def chat_tools(tools: Sequence[Any]) -> list[Any]:
    """``type`` may be absent; the rest is checked where tools of a chat are."""
    return [{"type": "function", **tool} if isinstance(tool, Mapping) else tool for tool in tools]


def _wrong(place: str, what: str) -> ApiError:
    return ApiError(400, f"{place} {what}", param=place)


def _text(holder: Any, name: str, place: str) -> str:
    value = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(value, str):
        raise _wrong(f"{place}.{name}", "must be a string")
    return value


def _message(message: Any, place: str, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    role = _text(message, "role", place)
    if message.get("images"):
        raise _wrong(f"{place}.images", "is not supported: this model takes text only")
    out: dict[str, Any] = {"role": role, "content": ""}
    if message.get("content") is not None:
        out["content"] = _text(message, "content", place)
    if message.get("thinking"):
        out["reasoning_content"] = _text(message, "thinking", place)
    if message.get("tool_calls"):
        out["tool_calls"] = _calls(message["tool_calls"], f"{place}.tool_calls", open_calls)
    if role == "tool":
        out["tool_call_id"] = _answered(message, place, open_calls)
    return out


def _calls(calls: Any, place: str, open_calls: list[tuple[str, str]]) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _wrong(place, "must be a list")
    out = []
    for i, call in enumerate(calls):
        at = f"{place}[{i}].function"
        function = call.get("function") if isinstance(call, Mapping) else None
        name = _text(function, "name", at)
        assert isinstance(function, Mapping)
        arguments = function.get("arguments") or {}
        if not isinstance(arguments, Mapping):
            raise _wrong(f"{at}.arguments", "must be an object")
        given = call.get("id")
        id = given if isinstance(given, str) and given else f"call_{len(open_calls)}_{i}"
        open_calls.append((id, name))
        text = msgspec.json.encode(arguments).decode()
        out.append({"id": id, "type": "function", "function": {"name": name, "arguments": text}})
    return out


def _answered(message: Mapping[str, Any], place: str, open_calls: list[tuple[str, str]]) -> str:
    """The id of the call that this message is the result of."""
    if message.get("tool_call_id"):
        return _text(message, "tool_call_id", place)
    name = _text(message, "tool_name", place) if message.get("tool_name") else None
    for call in open_calls:
        if name is None or call[1] == name:
            open_calls.remove(call)
            return call[0]
    said = "follows no call" if name is None else f"names {name[:40]!r}, and no call of it waits for a result"
    raise _wrong(f"{place}.tool_name", said)
