"""Request bodies: what is accepted, field by field. Everything else is refused by name.

A field that could change the answer is obeyed or refused, never ignored; null counts as absent, as in
OpenAI's API.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

import msgspec

from spola.server.errors import ApiError

__all__ = ["ChatRequest", "CompletionRequest", "Message", "StreamOptions", "TextPart", "parse", "plain"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[TextPart]


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(_Common, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int]


class ChatRequest(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None


T = TypeVar("T", CompletionRequest, ChatRequest)
_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def parse(body: bytes, kind: type[T]) -> T:
    """The checked request. Raises ApiError 400 naming the field."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "the body must be a JSON object")
    known = kind.__struct_fields__
    for name in raw:
        if name not in known and raw[name] is not None:
            raise ApiError(400, f"{name[:80]!r} is not supported yet", param=name[:80])
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        request = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    for name in ("temperature", "top_p"):
        value = getattr(request, name)
        if value is not None and not math.isfinite(value):
            raise ApiError(400, f"{name} must be finite", param=name)
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options is only allowed with stream", param="stream_options")
    return request


def _named(text: str) -> ApiError:
    """msgspec's words with the field as ``param``."""
    place = _PLACE.search(text)
    param = place[1] if place else ""
    said = _PLACE.sub("", text)
    unknown, missing = _UNKNOWN.search(said), _MISSING.search(said)
    if unknown is not None:
        param = f"{param}.{unknown[1]}" if param else unknown[1]
        return ApiError(400, f"{param!r} is not supported yet", param=param)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return ApiError(400, f"{param} is missing", param=param)
    return ApiError(400, f"{param}: {said}" if param else said, param=param or None)


def plain(message: Message, place: str) -> dict[str, Any]:
    """The message as the template layer takes it. Raises ApiError for a role that waits for tool support."""
    if message.role not in ("system", "developer", "user", "assistant"):
        raise ApiError(400, f"{place}.role {message.role[:40]!r} is not supported yet", param=f"{place}.role")
    content = message.content
    return {
        "role": message.role,
        "content": content
        if isinstance(content, str)
        else [msgspec.structs.asdict(part) for part in content],
    }
