"""POST /tokenize and /detokenize, in vLLM's shapes. The count is what a request of the same fields has."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.server.asks import Body, Terms, chat_ask
from spola.server.errors import ApiError, json_response
from spola.server.schema import decode

__all__ = ["detokenize", "tokenize"]

_OF_TEXT = {"model", "prompt", "add_special_tokens", "return_token_strs"}


async def tokenize(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """A ``prompt``, or ``messages`` with whatever else a chat may have (tools, template arguments)."""
    return json_response(await asyncio.to_thread(_tokenize, desk.service, terms, body))


async def detokenize(desk: Desk, terms: Terms, http: Request, body: Body) -> Response:
    """The text of ``tokens``, special ones included."""
    return json_response({"prompt": await asyncio.to_thread(_detokenize, desk.service, body)})


def _tokenize(service: Service, terms: Terms, body: Body) -> dict[str, Any]:
    given = {name: value for name, value in _object(body).items() if value is not None}
    strings = _flag(given, "return_token_strs", False)
    if "messages" in given:
        if "prompt" in given:
            raise ApiError(400, "give prompt or messages, not both", param="prompt")
        chat = {name: value for name, value in given.items() if name != "return_token_strs"}
        if "add_special_tokens" in chat:
            raise ApiError(
                400, "add_special_tokens: the template decides for messages", param="add_special_tokens"
            )
        (ids,) = chat_ask(service, terms, chat).prompts
    else:
        _only(given, _OF_TEXT)
        prompt = given.get("prompt")
        if not isinstance(prompt, str):
            raise ApiError(400, "prompt must be a text", param="prompt")
        ids = service.prompt_ids(prompt, add_special=_flag(given, "add_special_tokens", True))
    out = {"count": len(ids), "max_model_len": service.config.max_model_len, "tokens": ids}
    if strings:
        out["token_strs"] = [service.tokenizer.token_text(token) for token in ids]
    return out


def _detokenize(service: Service, body: Body) -> str:
    given = {name: value for name, value in _object(body).items() if value is not None}
    _only(given, {"model", "tokens"})
    tokens = given.get("tokens")
    if not isinstance(tokens, list) or any(isinstance(t, bool) or not isinstance(t, int) for t in tokens):
        raise ApiError(400, "tokens must be a list of ids", param="tokens")
    service.tokenizer.check_ids(tokens, "tokens")
    return service.tokenizer.decode(tokens, skip_special=False)


def _object(body: Body) -> dict[str, Any]:
    return decode(body) if isinstance(body, bytes) else dict(body)


def _only(given: dict[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise ApiError(400, f"{name[:80]!r} is none of {', '.join(sorted(known))}", param=name[:80])


def _flag(given: dict[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", param=name)
    return value
