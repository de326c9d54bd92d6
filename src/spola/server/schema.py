"""Request bodies: JSON to checked structs, by the table in ``server.fields``.

null counts as absent, as in OpenAI's API. What is wrong is refused by name; what is unknown is reported, or
refused with the nearest known name when ``strict``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from spola.server.errors import ApiError
from spola.server.fields import (
    NO_EFFECT,
    REFUSED,
    CommonRequest,
    Message,
    StreamOptions,
    Structured,
    Tool,
    ToolFunction,
)

__all__ = ["Parsed", "decode", "parse", "parse_object", "plain", "reported"]

T = TypeVar("T", bound=msgspec.Struct)
_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_LONGEST = 300  # characters of an error
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_NAME = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_MAX_REPORTED = 20
ROLES = ("system", "developer", "user", "assistant", "tool")

# Where objects with names of their own stand inside a body.
_NESTED: dict[str, type[msgspec.Struct]] = {
    "messages": Message,
    "stream_options": StreamOptions,
    "structured_outputs": Structured,
    "tools": Tool,
    "function": ToolFunction,
}


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """``unknown``: fields that nobody here knows, as paths; they are told in the answer's head."""

    request: T
    unknown: tuple[str, ...]


def decode(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError 400."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        hint = "; a \\ud8.. to \\udf.. escape may be without its other half" if _HALF.search(body) else ""
        raise ApiError(400, f"the body is not valid JSON: {error}{hint}") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "the body must be a JSON object")
    return raw


def parse(body: bytes, kind: type[T], *, strict: bool = False) -> Parsed[T]:
    """The checked request. Raises ApiError 400 naming the field."""
    return parse_object(decode(body), kind, strict=strict)


def parse_object(raw: dict[str, Any], kind: type[T], *, strict: bool = False) -> Parsed[T]:
    """As ``parse``, of a body that is decoded already."""
    given = {name: value for name, value in raw.items() if value is not None}
    _refuse(given, kind)
    unknown = tuple(_unknown(given, kind, ""))
    if unknown and strict:
        raise _stranger(unknown[0], kind)
    try:
        request = msgspec.convert({name: _without_nulls(value) for name, value in given.items()}, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    for name in kind.__struct_fields__:
        value = getattr(request, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ApiError(400, f"{name} must be finite", param=name)
    if isinstance(request, CommonRequest) and request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options is only allowed with stream", param="stream_options")
    return Parsed(request, unknown)


def _refuse(given: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    for name, (reason, neutral) in REFUSED.items():
        if name in given and name not in kind.__struct_fields__ and given[name] not in neutral:
            raise ApiError(400, f"{name} is not supported: {reason}", param=name)


def _unknown(given: dict[str, Any], kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Paths of the fields of ``given`` that ``kind`` does not have, also inside the objects it knows."""
    for name, value in given.items():
        if name not in kind.__struct_fields__:
            if value is not None and (path or (name not in NO_EFFECT and name not in REFUSED)):
                yield path + name[:80]
            continue
        inner = _NESTED.get(name) if path or issubclass(kind, CommonRequest) else None
        if inner is None or (name == "function" and not path):
            continue
        for place, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(item, dict):
                yield from _unknown(item, inner, f"{path}{name}{'' if place is None else f'[{place}]'}.")


def _stranger(path: str, kind: type[msgspec.Struct]) -> ApiError:
    name = path.rpartition(".")[2]
    owner = path.rpartition(".")[0].rpartition(".")[2].partition("[")[0]
    known = [*_NESTED.get(owner, kind).__struct_fields__, *((*NO_EFFECT, *REFUSED) if not owner else ())]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ApiError(400, f"unknown field {path!r}{hint}", param=path)


def reported(unknown: tuple[str, ...]) -> str:
    """``unknown`` as the value of a header: nothing but letters, digits and ``_.[]-``, of bounded length."""
    names = [_NAME.sub("?", path) for path in unknown[:_MAX_REPORTED]]
    more = len(unknown) - len(names)
    return ", ".join([*names, f"and {more} more"] if more > 0 else names)


def _without_nulls(value: Any) -> Any:
    """Null counts as absent in the objects that have fields of ours too; one level is all they have."""
    if isinstance(value, dict) and None in value.values():
        return {name: item for name, item in value.items() if item is not None}
    return value


def _named(text: str) -> ApiError:
    """msgspec's words with the field as ``param``."""
    place = _PLACE.search(text)
    param = place[1] if place else ""
    said = _PLACE.sub("", text)
    if len(said) > _LONGEST:  # it may quote what was sent
        said = f"{said[: _LONGEST - 4]} ..."
    missing = _MISSING.search(said)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return ApiError(400, f"{param} is missing", param=param)
    return ApiError(400, f"{param}: {said}" if param else said, param=param or None)


def plain(message: Message, place: str) -> dict[str, Any]:
    """The message as the template layer takes it, without what is absent. Raises ApiError for its role."""
    if message.role not in ROLES:
        raise ApiError(
            400, f"{place}.role {message.role[:40]!r} is none of {', '.join(ROLES)}", param=f"{place}.role"
        )
    out: dict[str, Any] = {"role": message.role}
    for name in ("content", "name", "tool_calls", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            out[name] = value
    thought = message.reasoning or message.reasoning_content
    if thought is not None:
        out["reasoning_content"] = thought
    return out
