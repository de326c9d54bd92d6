"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API over the chat route.

A body becomes that of a chat; nothing is generated here. The answer's words are in ``messages_reply``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Ask, Body, Terms, chat_ask
from spola.server.errors import ApiError, as_called, json_response
from spola.server.messages_reply import MessagesReply
from spola.server.schema import decode, parse_object
from spola.server.translate import translated

__all__ = ["CountRequest", "MessagesRequest", "count_tokens", "messages"]


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: Annotated[
        list[Any], Meta(description="user and assistant; text, tool_use, tool_result, thinking.")
    ]
    model: Annotated[str | None, Meta(description="One of the served models; absent: the default one.")] = (
        None
    )
    system: Annotated[str | list[Any] | None, Meta(description="A text, or text blocks.")] = None
    tools: Annotated[list[Any] | None, Meta(description="Tools with an input_schema.")] = None
    tool_choice: Annotated[Any, Meta(description="auto, any, none, or a tool by name.")] = None
    thinking: Annotated[Any, Meta(description="enabled, adaptive or disabled, for the template.")] = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Meta(description="Tokens to generate, at most.")]
    temperature: Annotated[float | None, Meta(description="0 is greedy.")] = None
    top_p: Annotated[float | None, Meta(description="Above 0, at most 1.")] = None
    top_k: Annotated[int | None, Meta(description="0 is off.")] = None
    stop_sequences: Annotated[list[str] | None, Meta(description="Up to 16 non-empty strings.")] = None
    stream: Annotated[bool | None, Meta(description="Server-sent events.")] = None
    metadata: Annotated[Any, Meta(description="Taken; nothing is stored.")] = None
    service_tier: Annotated[str | None, Meta(description="Taken; there is one.")] = None


async def messages(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /v1/messages."""
    ask = await asyncio.to_thread(_ask, desk.service, terms, body)
    return await translated(desk, http, ask, MessagesReply(terms.model, len(ask.prompts[0])))


async def count_tokens(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /v1/messages/count_tokens."""
    ask = await asyncio.to_thread(_ask, desk.service, terms, body, CountRequest)
    return json_response({"input_tokens": len(ask.prompts[0])})


def _ask(service: Service, terms: Terms, body: Body, kind: type[CountRequest] = MessagesRequest) -> Ask:
    parsed = parse_object(decode(body) if isinstance(body, bytes) else dict(body), kind, strict=terms.strict)
    chat = chat_body(parsed.request)
    with as_called({"stop": "stop_sequences", "prompt": "messages"}):
        return replace(chat_ask(service, terms, chat), unknown=parsed.unknown)


def chat_body(request: CountRequest) -> dict[str, Any]:
    """The same question as a chat's body. Raises ApiError naming the field."""
    chat: dict[str, Any] = {"model": request.model, "messages": _system(request.system)}
    for place, message in enumerate(request.messages):
        chat["messages"] += _message(message, f"messages[{place}]")
    if request.tools:
        chat["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    chat |= _tool_choice(request.tool_choice) | _thinking(request.thinking)
    if isinstance(request, MessagesRequest):
        chat |= {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "stop": request.stop_sequences or None,
            "stream": request.stream,
        }
    return {name: value for name, value in chat.items() if value is not None}


def _wrong(place: str, what: str) -> ApiError:
    return ApiError(400, f"{place} {what}", param=place)


def _field(block: Any, name: str, kind: type, place: str) -> Any:
    value = block.get(name) if isinstance(block, Mapping) else None
    if not isinstance(value, kind):
        raise _wrong(f"{place}.{name}", f"must be {'a string' if kind is str else 'an object'}")
    return value


def _system(system: str | Sequence[Any] | None) -> list[dict[str, Any]]:
    if not system:
        return []
    return [{"role": "system", "content": _text(system, "system")}]


def _text(content: Any, place: str) -> str:
    """A string, or the texts of text blocks joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(place, "must be a text or a list of blocks")
    out = []
    for i, block in enumerate(content):
        if _field(block, "type", str, f"{place}[{i}]") != "text":
            raise _wrong(f"{place}[{i}].type", f"is {block['type'][:40]!r}; this model takes text only")
        out.append(_field(block, "text", str, f"{place}[{i}]"))
    return "".join(out)


def _message(message: Any, place: str) -> list[dict[str, Any]]:
    role = _field(message, "role", str, place)
    content = message.get("content")
    if role == "system":
        return [{"role": "system", "content": _text(content, f"{place}.content")}]
    if role not in ("user", "assistant"):
        raise _wrong(f"{place}.role", f"{role[:40]!r} is none of user, assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not content:
        raise _wrong(f"{place}.content", "must be a text or a list of blocks")
    return (_user if role == "user" else _assistant)(content, f"{place}.content")


def _user(blocks: Sequence[Any], place: str) -> list[dict[str, Any]]:
    """Results of tools, each a message of its own, then the texts."""
    out, texts = [], []
    for i, block in enumerate(blocks):
        at = f"{place}[{i}]"
        kind = _field(block, "type", str, at)
        if kind == "tool_result":
            result = _text(block.get("content") or "", f"{at}.content")
            out.append(
                {"role": "tool", "tool_call_id": _field(block, "tool_use_id", str, at), "content": result}
            )
        else:
            texts.append(_text([block], place))
    if texts:
        out.append({"role": "user", "content": "".join(texts)})
    return out


def _assistant(blocks: Sequence[Any], place: str) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{place}[{i}]"
        kind = _field(block, "type", str, at)
        if kind == "thinking":
            thoughts.append(_field(block, "thinking", str, at))
        elif kind == "tool_use":
            function = {
                "name": _field(block, "name", str, at),
                "arguments": msgspec.json.encode(_field(block, "input", dict, at)).decode(),
            }
            calls.append({"id": _field(block, "id", str, at), "type": "function", "function": function})
        else:
            texts.append(_text([block], place))
    out: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        out["reasoning_content"] = "".join(thoughts)
    if calls:
        out["tool_calls"] = calls
    return [out]


def _tool(tool: Any, place: str) -> dict[str, Any]:
    kind = tool.get("type", "custom") if isinstance(tool, Mapping) else "custom"
    if kind != "custom":
        raise _wrong(
            f"{place}.type", f"{str(kind)[:40]!r} is not supported: only tools with an input_schema are"
        )
    function = {
        "name": _field(tool, "name", str, place),
        "parameters": _field(tool, "input_schema", dict, place),
    }
    if tool.get("description") is not None:
        function["description"] = _field(tool, "description", str, place)
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = _field(choice, "type", str, "tool_choice")
    out: dict[str, Any] = {}
    if kind == "tool":
        out["tool_choice"] = {
            "type": "function",
            "function": {"name": _field(choice, "name", str, "tool_choice")},
        }
    elif kind in ("auto", "any", "none"):
        out["tool_choice"] = "required" if kind == "any" else kind
    else:
        raise _wrong("tool_choice.type", f"{kind[:40]!r} is none of auto, any, tool, none")
    if choice.get("disable_parallel_tool_use"):
        out["parallel_tool_calls"] = False
    return out


def _thinking(thinking: Any) -> dict[str, Any]:
    """``budget_tokens`` is a hint that nobody here can obey; whether to think at all is the template's."""
    if thinking is None:
        return {}
    kind = _field(thinking, "type", str, "thinking")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise _wrong("thinking.type", f"{kind[:40]!r} is none of enabled, adaptive, disabled")
    return {} if kind == "adaptive" else {"chat_template_kwargs": {"enable_thinking": kind == "enabled"}}
