"""POST /tokenize and /detokenize, in vLLM's shapes. The count is what a request of the same fields has."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Body, Terms, chat_ask
from spola.server.errors import ApiError, json_response
from spola.server.schema import decode, parse_object

__all__ = ["DetokenizeRequest", "TokenizeRequest", "detokenize", "tokenize"]


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize. With ``messages`` every field of a chat is taken too."""

    model: Annotated[str | None, Meta(description="A served model; absent: the default one.")] = None
    prompt: Annotated[str | None, Meta(description="A text; special tokens in it are read.")] = None
    messages: Annotated[list[Any] | None, Meta(description="As in a chat; not with prompt.")] = None
    add_special_tokens: Annotated[bool | None, Meta(description="False: no BOS before the prompt.")] = None
    return_token_strs: Annotated[bool | None, Meta(description="Adds the text of each token.")] = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: Annotated[list[int], Meta(description="Token ids.")]
    model: Annotated[str | None, Meta(description="A served model; absent: the default one.")] = None


async def tokenize(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """A ``prompt``, or ``messages`` with whatever else a chat may have (tools, template arguments)."""
    return json_response(await asyncio.to_thread(_tokenize, desk.service, terms, body))


async def detokenize(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """The text of ``tokens``, special ones included."""
    return json_response({"prompt": await asyncio.to_thread(_detokenize, desk.service, body)})


def _tokenize(service: Service, terms: Terms, body: Body) -> dict[str, Any]:
    raw = _object(body)
    if raw.get("messages") is not None:
        chat = {name: value for name, value in raw.items() if name != "return_token_strs"}
        for name in ("prompt", "add_special_tokens"):
            if chat.get(name) is not None:
                raise ApiError(400, f"{name}: with messages the template decides", param=name)
        strings = parse_object({"return_token_strs": raw.get("return_token_strs")}, TokenizeRequest).request
        (ids,) = chat_ask(service, terms, chat).prompts
    else:
        strings = parse_object(raw, TokenizeRequest, strict=True).request
        if strings.prompt is None:
            raise ApiError(400, "prompt or messages is missing", param="prompt")
        ids = service.prompt_ids(strings.prompt, add_special=strings.add_special_tokens is not False)
    out = {"count": len(ids), "max_model_len": service.config.max_model_len, "tokens": ids}
    if strings.return_token_strs:
        out["token_strs"] = [service.tokenizer.token_text(token) for token in ids]
    return out


def _detokenize(service: Service, body: Body) -> str:
    tokens = parse_object(_object(body), DetokenizeRequest, strict=True).request.tokens
    service.tokenizer.check_ids(tokens, "tokens")
    return service.tokenizer.decode(tokens, skip_special=False)


def _object(body: Body) -> dict[str, Any]:
    return decode(body) if isinstance(body, bytes) else dict(body)
