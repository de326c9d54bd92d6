"""The two generating endpoints: from a checked body to a whole answer or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from spola.core.errors import SpolaError
from spola.runtime.answer import Delta
from spola.runtime.desk import Desk, Ticket
from spola.server.asks import Ask, chat_ask, completion_ask
from spola.server.errors import ApiError, error_body, from_spola, internal_error, json_response
from spola.server.replies import Shape
from spola.server.sse import DONE, PING, EventStream, event, gone

__all__ = ["chat_completions", "completions"]

PING_AFTER_S = 10.0


async def completions(desk: Desk, name: str, http: HttpRequest, body: bytes) -> Response:
    """POST /v1/completions."""
    return await _answer(desk, http, await asyncio.to_thread(completion_ask, desk.service, name, body))


async def chat_completions(desk: Desk, name: str, http: HttpRequest, body: bytes) -> Response:
    """POST /v1/chat/completions."""
    return await _answer(desk, http, await asyncio.to_thread(chat_ask, desk.service, name, body))


async def _answer(desk: Desk, http: HttpRequest, ask: Ask) -> Response:
    ticket = desk.submit(ask.ids, ask.params, cache_salt=ask.cache_salt)
    if ask.stream:
        return EventStream(_frames(desk, ticket, ask.shape))
    try:
        await _until_done(ticket, http)
    finally:
        desk.leave(ticket)
    if not ticket.job.done:
        return Response(status_code=499)  # the client has left: nobody reads this
    for choice in ticket.job.choices:
        _raise_unless_fine(choice.finish_reason, choice.error)
    return json_response(ask.shape.whole(ticket.job))


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
