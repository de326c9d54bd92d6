"""Bodies on their way in: bounded in size, time and nesting, before anything is made of them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import Request

from spola.server.errors import ApiError
from spola.server.options import ServerOptions

__all__ = ["check_depth", "model_of", "read_body"]

DISCARD = 64 << 20  # bytes
LARGE = 64 << 10  # bytes above which even a look at a body leaves the event loop
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class _Named(msgspec.Struct):
    model: Any = None


async def read_body(request: Request, options: ServerOptions) -> bytes:
    """The request's body. Raises ApiError 413 for one that is too large, 400 for one too deep.

    What is too much is read on for a while and thrown away: few clients look at an answer before they have
    sent everything.
    """
    most, size = options.max_body, 0
    data = bytearray()
    async for piece in request.stream():
        size += len(piece)
        if size <= most:
            data += piece
        elif size > most + DISCARD:
            break
        else:
            data.clear()
    if size > most:
        raise ApiError(413, f"the body has more than {most} bytes")
    body = bytes(data)
    if len(body) > LARGE:
        await asyncio.to_thread(check_depth, body, options.max_depth)
    else:
        check_depth(body, options.max_depth)
    return body


def check_depth(body: bytes, most: int) -> None:
    """Raise ApiError 400 for JSON with more than ``most`` objects and lists inside each other."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    depth = 0
    for mark in _MARKS.finditer(body):
        first = body[mark.start()]
        if first in b"[{":
            depth += 1
            if depth > most:
                raise ApiError(400, f"the body has more than {most} objects and lists inside each other")
        elif first in b"]}":
            depth -= 1


def model_of(body: bytes) -> str | None:
    """What the body calls its model, if it is an object and that is a string; else None."""
    try:
        name = msgspec.json.decode(body, type=_Named).model
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None  # the endpoint says what is wrong
    return name if isinstance(name, str) else None
