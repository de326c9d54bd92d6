"""From a chat's answer to another protocol: one Translator per answer, fed with what a chat would stream.

A whole answer goes through the same Translator as a stream, as one piece; so both say the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.answer import Delta, Job
from spola.runtime.desk import Desk
from spola.runtime.ticket import Ticket
from spola.server.asks import Ask
from spola.server.errors import ApiError, internal_error, json_response
from spola.server.generate import UNKNOWN_FIELDS, begin, finished, news
from spola.server.schema import reported
from spola.server.sse import Direct, EventStream

__all__ = ["End", "LineStream", "Translator", "translated"]


@dataclass(frozen=True, slots=True)
class End:
    """How an answer ended: OpenAI's finish reason, the stop that matched, and OpenAI's usage."""

    finish: str
    stop: int | str | None
    usage: Mapping[str, Any]
    jobs: Sequence[Job]


class Translator(Protocol):
    """Words one answer. Each method but ``whole`` gives bytes of a stream."""

    def piece(self, delta: Mapping[str, Any]) -> bytes:
        """A chat chunk's delta: content, reasoning, tool_calls."""

    def end(self, end: End) -> bytes:
        """After the last piece."""

    def ping(self) -> bytes:
        """Something without meaning, so that the connection is seen to live."""

    def failed(self, error: ApiError) -> bytes:
        """The last word of a stream that ends in an error."""

    def whole(self) -> Any:
        """The answer as one object; after ``end``."""


class LineStream(EventStream):
    """A JSON document per line."""

    media_type = "application/x-ndjson"


async def translated(
    desk: Desk, http: Request, ask: Ask, words: Translator, stream: type[EventStream] = EventStream
) -> Response:
    """Generate ``ask``, a chat of one choice or a completion of one prompt, in the words of ``words``."""
    headers = {UNKNOWN_FIELDS: reported(ask.unknown)} if ask.unknown else {}
    ticket = begin(desk, ask)
    if ask.stream:
        frames = _frames(desk, ticket, ask, words)
        return stream(frames, headers, partial(desk.leave, ticket), partial(_express, ticket, ask, words))
    if not await finished(desk, ticket, http):
        return Response(status_code=499)  # the client has left: nobody reads this
    answer = ask.shape.whole(ticket.jobs)
    choice = answer["choices"][0]
    message = dict(choice.get("message") or {"content": choice.get("text")})
    if message.get("tool_calls"):
        message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
    words.piece({**message, "logprobs": choice.get("logprobs")})
    words.end(_end(ticket, choice["finish_reason"], answer["usage"]))
    return json_response(words.whole(), headers=headers)


def _end(ticket: Ticket, finish: str, usage: Mapping[str, Any]) -> End:
    return End(finish, ticket.jobs[0].choices[0].stop_reason, usage, ticket.jobs)


async def _frames(desk: Desk, ticket: Ticket, ask: Ask, words: Translator) -> AsyncGenerator[bytes, None]:
    finish = "stop"
    try:
        async for deltas in news(ticket):
            out = b"" if deltas else words.ping()
            for delta in deltas:
                said, reason = _said(delta, ticket, ask, words)
                out += said
                finish = reason or finish
            if out:
                yield out
        yield words.end(_end(ticket, finish, ask.shape.usage_chunk(ticket.jobs)["usage"]))
    except ApiError as error:
        yield words.failed(error)
    except Exception as error:
        yield words.failed(internal_error("a stream", error))
    finally:
        desk.leave(ticket)


def _said(delta: Delta, ticket: Ticket, ask: Ask, words: Translator) -> tuple[bytes, str | None]:
    """``delta`` in ``words``, and the finish reason if it is the last."""
    out, finish = b"", None
    for chunk in ask.shape.chunks(delta, ticket.jobs):
        choice = chunk["choices"][0]
        piece = choice.get("delta") or {"content": choice.get("text")}
        out += words.piece({**piece, "logprobs": choice.get("logprobs")})
        finish = choice["finish_reason"] or finish
    return out, finish


def _express(ticket: Ticket, ask: Ask, words: Translator, writer: Direct) -> None:
    """Let news go out as they come, as long as the client reads them."""

    def take(delta: Delta) -> bool:
        if not writer.ready:
            return False
        body, _ = _said(delta, ticket, ask, words)
        if body:
            writer.write(body)
        return True

    ticket.express = take
