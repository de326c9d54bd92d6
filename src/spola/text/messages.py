"""What a chat message may look like, brought into the one form that templates are written for.

Checks shapes and says which field is wrong; which roles may follow which is the template's word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spola.core.errors import RequestError

__all__ = ["normalise_messages"]


def normalise_messages(
    messages: Sequence[Mapping[str, Any]], *, keep_developer: bool = False
) -> list[dict[str, Any]]:
    """``messages`` with string contents, as new dicts.

    - A list of text parts becomes their texts joined without anything between; other parts are refused.
    - ``content`` null or missing is the empty string beside ``tool_calls``, and refused otherwise.
    - ``arguments`` of a tool call, a JSON string in the API, becomes the object that templates expect.
    - The role ``developer`` becomes ``system`` unless ``keep_developer``.

    Raises RequestError naming the field, for example ``messages[2].content``.
    """
    if not isinstance(messages, (list, tuple)):
        raise _error("messages", "must be a list of messages")
    if not messages:
        raise _error("messages", "must hold at least one message")
    return [_message(f"messages[{i}]", message, keep_developer) for i, message in enumerate(messages)]


def _error(field: str, what: str) -> RequestError:
    return RequestError(f"{field} {what}", param=field)


def _message(field: str, message: Any, keep_developer: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _error(field, f"must be an object with role and content, not {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _error(f"{field}.role", "must be a non-empty string")
    out = dict(message)
    if role == "developer" and not keep_developer:
        out["role"] = "system"
    calls = message.get("tool_calls")
    if calls is not None:
        out["tool_calls"] = _calls(f"{field}.tool_calls", calls)
    out["content"] = _content(f"{field}.content", message.get("content"), bool(calls))
    return out


def _content(field: str, content: Any, has_calls: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if has_calls:
            return ""
        raise _error(field, "is missing; only a message with tool_calls may go without")
    if isinstance(content, (list, tuple)):
        return "".join(_part(f"{field}[{i}]", part) for i, part in enumerate(content))
    raise _error(field, f"must be a string or a list of text parts, not {_kind(content)}")


def _part(field: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise _error(field, f'must be an object like {{"type": "text", "text": …}}, not {_kind(part)}')
    kind = part.get("type")
    if kind != "text":
        raise _error(f"{field}.type", f"is {kind!r}; this model takes text only")
    text = part.get("text")
    if not isinstance(text, str):
        raise _error(f"{field}.text", f"must be a string, not {_kind(text)}")
    return text


def _calls(field: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise _error(field, f"must be a list, not {_kind(calls)}")
    return [_call(f"{field}[{i}]", call) for i, call in enumerate(calls)]


def _call(field: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _error(f"{field}.function", "must be an object with name and arguments")
    if not isinstance(function.get("name"), str):
        raise _error(f"{field}.function.name", "must be a string")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _object(arguments)
    elif arguments is None:
        arguments = {}
    elif not isinstance(arguments, Mapping):
        raise _error(f"{field}.function.arguments", "must be a JSON object or its text")
    return {**call, "function": {**function, "arguments": arguments}}


def _object(text: str) -> Any:
    """The object that ``text`` is the JSON of; a model's broken arguments stay as they are."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", dict: "an object"}
    return (
        "null" if value is None else names.get(type(value), "a list" if isinstance(value, list) else "that")
    )
