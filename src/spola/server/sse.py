"""Server-sent events: framing, pings in silence, and an end when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["DONE", "PING", "EventStream", "event", "gone", "pinged"]

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encoder = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    """One ``data:`` event; JSON holds no raw newline."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


async def pinged(items: AsyncGenerator[T, None], after_s: float) -> AsyncGenerator[T | None, None]:
    """``items``, and None after each ``after_s`` seconds without one."""
    while True:
        waiting = asyncio.ensure_future(anext(items))
        try:
            while not (await asyncio.wait({waiting}, timeout=after_s))[0]:
                yield None
        except BaseException:
            waiting.cancel()
            raise
        try:
            item = waiting.result()
        except StopAsyncIteration:
            return
        yield item


async def gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what ``frames`` yields. ``frames`` is closed, also in mid-wait, when the client leaves.

    ``leave`` is called at the end in any case, also when the client left before ``frames`` began.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.frames = frames
        self.leave = leave
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        # The length is not known: the base class has counted an empty body.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send(send))
        watcher = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait((sender, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, watcher):
                task.cancel()
            results = await asyncio.gather(sender, watcher, return_exceptions=True)
            self.leave()
        if isinstance(results[0], Exception) and not isinstance(results[0], (OSError, ClientDisconnect)):
            raise results[0]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for frame in self.frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        finally:
            await self.frames.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
