"""The two generating endpoints: from a checked body to a whole answer or a stream of events.

``begin``, ``finished`` and ``news`` are the steps between, for routes that word the answer otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from spola.core.errors import SpolaError
from spola.runtime.answer import Delta
from spola.runtime.desk import Desk
from spola.runtime.service import Service
from spola.runtime.ticket import Ticket
from spola.server.asks import Ask, Body, Terms, chat_ask, completion_ask
from spola.server.errors import ApiError, error_body, from_spola, internal_error, json_response
from spola.server.explained import explained, explained_whole
from spola.server.schema import reported
from spola.server.sse import DONE, PING, Direct, EventStream, event, gone, pinged
from spola.server.visit import Visit, visit_of

__all__ = ["UNKNOWN_FIELDS", "begin", "chat_completions", "completions", "finished", "news", "prepared"]

PING_AFTER_S = 10.0
UNKNOWN_FIELDS = "X-Spola-Unknown-Fields"

_Make = Callable[[Service, Terms, Body], Ask]


async def completions(desk: Desk, terms: Terms, http: HttpRequest, body: Body) -> Response:
    """POST /v1/completions."""
    return await _answer(desk, http, await prepared(completion_ask, desk, terms, body))


async def chat_completions(desk: Desk, terms: Terms, http: HttpRequest, body: Body) -> Response:
    """POST /v1/chat/completions."""
    return await _answer(desk, http, await prepared(chat_ask, desk, terms, body))


async def prepared(make: _Make, desk: Desk, terms: Terms, body: Body) -> Ask:
    """``make``'s Ask, made off the event loop: templates, tokens and grammars take their time."""
    return await asyncio.to_thread(make, desk.service, terms, body)


def begin(desk: Desk, ask: Ask) -> Ticket:
    """Send ``ask`` to the engine. Raises SpolaError when it is refused; ``desk.leave`` the ticket at last."""
    return desk.submit_all(ask.prompts, ask.params, **ask.how)


async def finished(desk: Desk, ticket: Ticket, http: HttpRequest) -> bool:
    """Wait for the end and leave the desk; False when the client has left first.

    Raises ApiError when the answer is an error.
    """
    waiters = [asyncio.create_task(gone(http.receive)), asyncio.create_task(ticket.end())]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
        desk.leave(ticket)
    if not ticket.done:
        return False
    for job in ticket.jobs:
        for choice in job.choices:
            _raise_unless_fine(choice.finish_reason, choice.error)
    return True


async def news(ticket: Ticket) -> AsyncIterator[list[Delta]]:
    """What comes, step by step; an empty list after ``PING_AFTER_S`` seconds of silence.

    Raises ApiError when the answer ends in an error.
    """
    while not ticket.done:
        deltas = await ticket.get(PING_AFTER_S)
        for delta in deltas:
            _raise_unless_fine(delta.finish_reason, delta.error)
        yield deltas


async def _answer(desk: Desk, http: HttpRequest, ask: Ask) -> Response:
    headers = {UNKNOWN_FIELDS: reported(ask.unknown)} if ask.unknown else {}
    if ask.explain:
        desk.explaining.check()
    ticket = begin(desk, ask)
    if ask.stream:
        frames = _frames(desk, ticket, ask, visit_of(http))
        return EventStream(frames, headers, partial(desk.leave, ticket), partial(_express, ticket, ask))
    if not await finished(desk, ticket, http):
        return Response(status_code=499)  # the client has left: nobody reads this
    whole = ask.shape.whole(ticket.jobs)
    if ask.explain:
        whole["explain"] = await explained_whole(desk, ticket.job, visit_of(http))
    return json_response(whole, headers=headers)


async def _frames(desk: Desk, ticket: Ticket, ask: Ask, visit: Visit) -> AsyncGenerator[bytes, None]:
    """The events of a stream: chunks, explanation and usage if asked for, the end; an error ends it early."""
    try:
        async for deltas in news(ticket):
            # What one step gave goes out in one write.
            yield b"".join(_events(deltas, ticket, ask)) if deltas else PING
        if ask.explain:
            async for part in pinged(explained(desk, ticket.job, visit), PING_AFTER_S):
                yield PING if part is None else event(ask.shape.explain_chunk(part))
        if ask.shape.style.include_usage:
            yield event(ask.shape.usage_chunk(ticket.jobs))
        yield DONE
    except ApiError as error:
        yield event(error_body(error))
    except SpolaError as error:
        yield event(error_body(from_spola(error)))
    except Exception as error:
        yield event(error_body(internal_error("a stream", error)))
    finally:
        desk.leave(ticket)


def _events(deltas: list[Delta], ticket: Ticket, ask: Ask) -> list[bytes]:
    return [ask.shape.events(delta, ticket.jobs) for delta in deltas]


def _express(ticket: Ticket, ask: Ask, writer: Direct) -> None:
    """Let news go out as they come, as long as the client reads them."""
    shape, jobs = ask.shape, ticket.jobs
    choices = [choice for job in jobs for choice in job.choices]

    def take(delta: Delta) -> bool:
        if not writer.ready:
            return False
        body = shape.events(delta, jobs)
        if body:
            writer.write(body)
        frame = shape.frame(delta.index)
        if frame is not None:
            choice = choices[delta.index]
            ticket.lanes[choice.id] = delta.index, choice, writer.lane(frame)
        return True

    ticket.express = take


def _raise_unless_fine(finish: str | None, error: SpolaError | None) -> None:
    if error is not None:
        raise from_spola(error)
    if finish == "abort":
        raise ApiError(503, "the server is shutting down", kind="server_error", retry_after=5)
