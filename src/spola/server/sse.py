"""Server-sent events: framing, pings in silence, and an end when the client leaves.

``Frame`` words the many events that differ in their text alone; a ``Direct`` writes them without a detour.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["DONE", "PING", "WRITER", "Direct", "EventStream", "Frame", "encode", "event", "gone", "pinged"]

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
WRITER = "spola.writer"  # the extension of an ASGI scope that gives a Direct, or None
encode = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    """One ``data:`` event; JSON holds no raw newline."""
    return b"data: " + encode(value) + b"\n\n"


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


class Frame:
    """Events that are alike but for one string: ``make`` gives such an event's value for a text.

    Encoded once; then an event costs the encoding of its text.
    """

    __slots__ = ("head", "tail")

    def __init__(self, make: Callable[[str], Any]) -> None:
        mark = secrets.token_hex(16)
        self.head, self.tail = event(make(mark)).split(b'"%b"' % mark.encode())

    def __call__(self, text: str) -> bytes:
        return self.head + encode(text) + self.tail


class Direct(Protocol):
    """Writes to the connection of a response that has started, past ASGI's ``send``."""

    @property
    def ready(self) -> bool:
        """Whether ``write`` may be called now."""

    def write(self, body: bytes) -> None: ...

    def lane(self, frame: Frame) -> Callable[[str], bool]:
        """A function that writes ``frame``'s event of a text, if there is one, and says whether it could."""


async def gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what ``frames`` yields. ``frames`` is closed, also in mid-wait, when the client leaves.

    ``leave`` is called at the end in any case, also when the client left before ``frames`` began. ``direct``
    is told, once the response has started, of a way to write beside ``frames``, if the server has one; what
    it writes while ``frames`` waits comes in order.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        leave: Callable[[], None] = lambda: None,
        direct: Callable[[Direct], None] | None = None,
    ) -> None:
        self.frames = frames
        self.leave = leave
        self.direct = direct
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        # The length is not known: the base class has counted an empty body.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send(scope, send))
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

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        opened: Callable[[], Direct | None] = scope.get("extensions", {}).get(WRITER, lambda: None)
        if self.direct is not None and (writer := opened()) is not None:
            self.direct(writer)
        try:
            async for frame in self.frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        finally:
            await self.frames.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
