"""POST /v1/responses: OpenAI's Responses API without state, over the chat route.

Nothing is stored, so ``previous_response_id`` is refused: the client sends the whole conversation. The
answer's words are in ``responses_reply``.
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
from spola.server.errors import ApiError, as_called
from spola.server.responses_reply import ResponsesReply
from spola.server.schema import decode, parse_object
from spola.server.translate import translated

__all__ = ["ResponsesRequest", "responses"]

_TEXTS = ("input_text", "output_text", "text", "refusal")
_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "prompt": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_INCLUDE = ("message.output_text.logprobs", "reasoning.encrypted_content")


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses."""

    input: Annotated[str | list[Any], Meta(description="A text, or messages, calls and their outputs.")]
    model: Annotated[str | None, Meta(description="One of the served models; absent: the default one.")] = (
        None
    )
    instructions: Annotated[str | None, Meta(description="A system message before the input.")] = None
    max_output_tokens: Annotated[int | None, Meta(description="Tokens to generate, at most.")] = None
    temperature: Annotated[float | None, Meta(description="0 is greedy.")] = None
    top_p: Annotated[float | None, Meta(description="Above 0, at most 1.")] = None
    top_logprobs: Annotated[int | None, Meta(description="0 to 20 alternatives per token.")] = None
    include: Annotated[list[str] | None, Meta(description=" or ".join(_INCLUDE))] = None
    stream: Annotated[bool | None, Meta(description="Server-sent events.")] = None
    tools: Annotated[list[Any] | None, Meta(description="Tools of type function.")] = None
    tool_choice: Annotated[Any, Meta(description="none, auto, required, or a function by name.")] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False: one call at most.")] = None
    text: Annotated[Any, Meta(description="format: text, json_object or json_schema.")] = None
    reasoning: Annotated[Any, Meta(description="effort, for the template.")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Given back; nothing is stored.")] = None
    truncation: Annotated[str | None, Meta(description="disabled: a prompt is never cut.")] = None
    background: Annotated[bool | None, Meta(description="false: there are no background jobs.")] = None
    stream_options: Annotated[Any, Meta(description="Taken.")] = None
    user: Annotated[str | None, Meta(description="Taken.")] = None
    previous_response_id: Annotated[str | None, Meta(description="Refused: nothing is stored.")] = None
    conversation: Annotated[Any, Meta(description="Refused: nothing is stored.")] = None
    prompt: Annotated[Any, Meta(description="Refused: nothing is stored.")] = None
    max_tool_calls: Annotated[int | None, Meta(description="Refused: tools are called by the client.")] = None


async def responses(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """POST /v1/responses."""
    ask, request = await asyncio.to_thread(_ask, desk.service, terms, body)
    return await translated(desk, http, ask, ResponsesReply(terms.model, msgspec.structs.asdict(request)))


def _ask(service: Service, terms: Terms, body: Body) -> tuple[Ask, ResponsesRequest]:
    raw = decode(body) if isinstance(body, bytes) else dict(body)
    parsed = parse_object(raw, ResponsesRequest, strict=terms.strict)
    chat = chat_body(parsed.request)
    with as_called(_NAMES):
        ask = chat_ask(service, terms, chat)
    return replace(ask, unknown=parsed.unknown), parsed.request


def chat_body(request: ResponsesRequest) -> dict[str, Any]:
    """The same question as a chat's body. Raises ApiError naming the field."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(request, name) is not None:
            raise _wrong(name, "is not supported: nothing is stored here; send the whole conversation")
    if request.background:
        raise _wrong("background", "is not supported: there are no background jobs")
    if request.max_tool_calls is not None:
        raise _wrong("max_tool_calls", "is not supported: the client calls the tools")
    if request.truncation not in (None, "disabled"):
        raise _wrong("truncation", "must be disabled: a prompt is never cut")
    messages = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    chat: dict[str, Any] = {
        "model": request.model,
        "messages": messages + _input(request.input),
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stream": request.stream,
        "parallel_tool_calls": request.parallel_tool_calls,
        "tool_choice": _tool_choice(request.tool_choice),
        "response_format": _format(request.text),
    }
    if request.tools:
        chat["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    if request.reasoning is not None:
        effort = request.reasoning.get("effort") if isinstance(request.reasoning, Mapping) else None
        chat["reasoning_effort"] = effort
    for name in request.include or ():
        if name not in _INCLUDE:
            raise _wrong("include", f"has {name[:60]!r}, which is none of {', '.join(_INCLUDE)}")
    if request.top_logprobs is not None or _INCLUDE[0] in (request.include or ()):
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return {name: value for name, value in chat.items() if value is not None}


def _wrong(place: str, what: str) -> ApiError:
    return ApiError(400, f"{place} {what}", param=place)


def _string(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(f"{place}.{name}", "must be a string")
    return value


def _input(given: str | Sequence[Any]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise _wrong("input", "is empty")
    out: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        _add(out, item, f"input[{i}]")
    return out


def _add(out: list[dict[str, Any]], item: Any, place: str) -> None:
    """Add one item to the messages. Calls and thoughts join the assistant's message that they belong to."""
    if not isinstance(item, Mapping):
        raise _wrong(place, "must be an object")
    match item.get("type", "message"):
        case "message":
            message = {"role": _string(item, "role", place), "content": _content(item.get("content"), place)}
            last = out[-1] if out else {}
            if message["role"] == "assistant" and last.get("role") == "assistant" and not last["content"]:
                last["content"] = message["content"]
            else:
                out.append(message)
        case "function_call":
            function = {"name": _string(item, "name", place), "arguments": _string(item, "arguments", place)}
            call = {"id": _string(item, "call_id", place), "type": "function", "function": function}
            _assistant(out).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(item.get("output"), place, "output")
            out.append({"role": "tool", "tool_call_id": _string(item, "call_id", place), "content": content})
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if not isinstance(parts, list):
                raise _wrong(f"{place}.content", "must be a list")
            texts = [_string(part if isinstance(part, Mapping) else {}, "text", place) for part in parts]
            if texts:
                out.append({"role": "assistant", "content": "", "reasoning_content": "".join(texts)})
        case kind:
            raise _wrong(f"{place}.type", f"{str(kind)[:40]!r} is not supported")


def _assistant(out: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that is being written."""
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": ""})
    return out[-1]


def _content(content: Any, place: str, name: str = "content") -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{place}.{name}", "must be a text or a list of parts")
    out = []
    for i, part in enumerate(content):
        at = f"{place}.{name}[{i}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _TEXTS:
            raise _wrong(f"{at}.type", f"is {str(kind)[:40]!r}; this model takes text only")
        out.append(_string(part, "refusal" if kind == "refusal" else "text", at))
    return "".join(out)


def _tool(tool: Any, place: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise _wrong(f"{place}.type", f"{str(kind)[:40]!r} is not supported: only function is")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {n: tool[n] for n in names if tool.get(n) is not None}}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": _string(choice, "name", "tool_choice")}}
    return choice


def _format(text: Any) -> Any:
    if text is None:
        return None
    if not isinstance(text, Mapping):
        raise _wrong("text", "must be an object")
    if text.get("verbosity") not in (None, "medium"):
        raise _wrong("text.verbosity", "is not supported: the model has no such setting")
    form = text.get("format")
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {n: v for n, v in form.items() if n != "type"}}
