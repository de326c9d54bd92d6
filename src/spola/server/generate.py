"""The two generating endpoints: from a checked body to a whole answer or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from spola.core.errors import SpolaError
from spola.core.params import SamplingParams
from spola.runtime.answer import Delta
from spola.server.desk import Desk, Ticket
from spola.server.errors import ApiError, error_body, from_spola, internal_error, json_response
from spola.server.replies import ChatShape, CompletionShape, Shape
from spola.server.schema import ChatRequest, CompletionRequest, parse, plain
from spola.server.sse import DONE, PING, EventStream, event, gone

__all__ = ["chat_completions", "completions"]

PING_AFTER_S = 10.0
COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


async def completions(desk: Desk, name: str, http: HttpRequest, body: bytes) -> Response:
    """POST /v1/completions."""
    request = parse(body, CompletionRequest)
    _check_model(request.model, name)
    prompt: Any = request.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise ApiError(400, "several prompts in one request are not supported yet", param="prompt")
        prompt = prompt[0]
    ids = await asyncio.to_thread(desk.service.prompt_ids, prompt)
    limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    params = _params(desk, request, limit)
    shape = CompletionShape(name, _fingerprint(desk), include_usage=_wants_usage(request))
    return await _answer(desk, http, ids, params, shape, request)


async def chat_completions(desk: Desk, name: str, http: HttpRequest, body: bytes) -> Response:
    """POST /v1/chat/completions."""
    request = parse(body, ChatRequest)
    _check_model(request.model, name)
    if not request.messages:
        raise ApiError(400, "messages is empty", param="messages")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise ApiError(
            400, "give max_completion_tokens or max_tokens, not both", param="max_completion_tokens"
        )
    messages = [plain(message, f"messages[{i}]") for i, message in enumerate(request.messages)]
    ids = await asyncio.to_thread(desk.service.chat_ids, messages)
    newer, older = request.max_completion_tokens, request.max_tokens
    params = _params(desk, request, older if newer is None else newer)
    shape = ChatShape(name, _fingerprint(desk), include_usage=_wants_usage(request))
    return await _answer(desk, http, ids, params, shape, request)


def _check_model(asked: str | None, name: str) -> None:
    if asked is not None and asked != name:
        raise ApiError(
            404,
            f"there is no model {asked[:100]!r}; this server has {name!r}",
            param="model",
            code="model_not_found",
        )


def _params(desk: Desk, request: CompletionRequest | ChatRequest, max_tokens: int | None) -> SamplingParams:
    stop = () if request.stop is None else request.stop
    return desk.service.defaults_with(
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        ignore_eos=request.ignore_eos,
        max_tokens=max_tokens,
    )


def _wants_usage(request: CompletionRequest | ChatRequest) -> bool:
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def _fingerprint(desk: Desk) -> str:
    config = desk.service.config
    return f"{config.backend}-{config.fingerprint[:16]}"


async def _answer(
    desk: Desk,
    http: HttpRequest,
    ids: list[int],
    params: SamplingParams,
    shape: Shape,
    request: CompletionRequest | ChatRequest,
) -> Response:
    ticket = desk.submit(ids, params, cache_salt=request.cache_salt)
    if request.stream:
        return EventStream(_frames(desk, ticket, shape))
    try:
        await _until_done(ticket, http)
    finally:
        desk.leave(ticket)
    if not ticket.job.done:
        return Response(status_code=499)  # the client has left: nobody reads this
    for choice in ticket.job.choices:
        _raise_unless_fine(choice.finish_reason, choice.error)
    return json_response(shape.whole(ticket.job))


async def _until_done(ticket: Ticket, http: HttpRequest) -> None:
    """Wait for the end of the job, or for the client to leave."""
    waiters = [asyncio.create_task(gone(http.receive)), asyncio.create_task(ticket.end())]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()


async def _frames(desk: Desk, ticket: Ticket, shape: Shape) -> AsyncGenerator[bytes, None]:
    """The events of a stream: chunks, then usage if asked for, then the end; an error ends it early."""
    try:
        while not ticket.job.done:
            news = await ticket.get(PING_AFTER_S)
            if not news:
                yield PING
            # What one step gave goes out in one write.
            yield b"".join(_events(news, shape))
        if shape.include_usage:
            yield event(shape.usage_chunk(ticket.job))
        yield DONE
    except ApiError as error:
        yield event(error_body(error))
    except Exception as error:
        yield event(error_body(internal_error("a stream", error)))
    finally:
        desk.leave(ticket)


def _events(news: list[Delta], shape: Shape) -> list[bytes]:
    out = []
    for delta in news:
        _raise_unless_fine(delta.finish_reason, delta.error)
        out += [event(chunk) for chunk in shape.chunks(delta.index, delta.text, delta.finish_reason)]
    return out


def _raise_unless_fine(finish: str | None, error: SpolaError | None) -> None:
    if error is not None:
        raise from_spola(error)
    if finish == "abort":
        raise ApiError(503, "the server is shutting down", kind="server_error", retry_after=5)
