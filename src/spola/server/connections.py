"""Connections: uvicorn's HTTP protocol with bounds on what a client may send, and on how slowly.

The header of a request is bounded in bytes and in time, a body in the time between two pieces (its size is
the application's business), and a client that does not take what it is sent for long is disconnected. Broken
requests get OpenAI's error body. A stream may write its pieces without a detour (``Writer``).
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from spola.server.options import ServerOptions
from spola.server.sse import WRITER, Frame, encode

__all__ = ["Writer", "protocol"]

KEEPALIVE_S = 60  # a peer that is gone without a word is found after about twice this


def protocol(options: ServerOptions) -> type[asyncio.Protocol]:
    """A protocol class for ``uvicorn.Config(http=...)`` that keeps to ``options``."""

    class Bounded(_Bounded):
        bounds = options

    return Bounded


class _Bounded(HttpToolsProtocol):
    bounds: ServerOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header = 0  # bytes that came of the header that is being read
        self._counted = 0  # bytes of it that were parsed
        self._reading = True  # a header, or a body that is not whole
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not of asyncio's class with another event loop.
        super().connection_made(cast(asyncio.Transport, transport))
        _probe_when_silent(transport.get_extra_info("socket"))
        self._wait_for_more()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        # With pipelined requests uvicorn tells only the last one, which has not begun.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        extensions: dict[str, Any] = cycle.scope.setdefault("extensions", {})
        # Weak: the scope belongs to the cycle, and both shall be gone with the response.
        extensions[WRITER] = partial(_writer, weakref.ref(cycle))
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        in_header = self.cycle is None or not self.cycle.more_body
        if in_header:
            self._header += len(data)
            if self._header > self.bounds.max_header + len(data):
                self._refuse(*self._oversize)
                return
        super().data_received(data)
        if not self.transport.is_closing():
            self._wait_for_more()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._header = self._counted = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._reading = False
        super().on_message_complete()

    def on_message_begin(self) -> None:
        self._reading = True
        super().on_message_begin()

    def send_400_response(self, msg: str) -> None:
        if self._counted > self.bounds.max_header:
            self._refuse(*self._oversize)
        else:
            self._refuse(400, msg)

    @property
    def _oversize(self) -> tuple[int, str]:
        return 431, f"the header has more than {self.bounds.max_header} bytes"

    def _count(self, n: int) -> None:
        self._counted += n
        if self._counted > self.bounds.max_header:
            raise ValueError("the header is too large")  # ends in send_400_response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.bounds.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _wait_for_more(self) -> None:
        """Give the client some time for the next piece, if one is due; an idle connection is uvicorn's."""
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        if self._reading:
            self._read_timer = self.loop.call_later(self.bounds.read_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        if not self._header and self.cycle is None:
            self.transport.close()  # it never said anything
        elif self.cycle is not None and self.cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(408, "the request did not arrive in time")

    def _refuse(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = msgspec.json.encode({"error": error})
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
        ]
        if not self.transport.is_closing():
            self.transport.write(b"".join(head) + body)
            self.transport.close()


class Writer:
    """Pieces of one response's body straight to its connection, once the response has started.

    An ASGI ``send`` of each costs a message, a coroutine at every layer around the application, and a task
    that must be woken for it.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def ready(self) -> bool:
        """Whether a piece can be written now; else only ``send`` will do, as when the client reads slowly."""
        cycle = self._cycle
        return not (cycle.flow.write_paused or cycle.disconnected or cycle.response_complete)

    def write(self, body: bytes) -> None:
        """Write ``body``, which is not empty; only when ``ready``."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def lane(self, frame: Frame) -> Callable[[str], bool]:
        """See ``sse.Direct``. One function for what is done for nearly every token of every stream."""
        cycle, flow, write = self._cycle, self._cycle.flow, self._cycle.transport.write
        head, tail = frame.head, frame.tail

        def put(text: str) -> bool:
            if flow.write_paused or cycle.disconnected or cycle.response_complete:
                return False
            if text:
                body = head + encode(text) + tail
                write(b"%x\r\n%b\r\n" % (len(body), body))
            return True

        return put


def _writer(cycle: weakref.ref[RequestResponseCycle]) -> Writer | None:
    """For a response that has started and whose body goes in chunks."""
    found = cycle()
    chunks = found is not None and found.chunked_encoding and found.scope["method"] != "HEAD"
    return Writer(found) if found is not None and chunks else None


def _probe_when_silent(connection: Any) -> None:
    """Let the system find out when the other end has gone without closing."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", KEEPALIVE_S), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
