"""A small HTTP/1.1 client for measuring: one request at a time on a connection, times taken on arrival.

Parsing is httptools'; what is read goes at once to a sink with the time of its arrival. Knows no JSON,
follows no redirects and retries nothing but a kept connection that the server had closed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from spola.core.errors import ConfigError

__all__ = ["Pool", "Sink", "Target"]

CONNECT_S = 10.0


class Sink(Protocol):
    """Takes an answer as it comes; ``at`` is ``time.perf_counter()`` when the bytes arrived."""

    def feed(self, data: bytes, at: float) -> None: ...


class Target:
    """Where requests go: ``http://host:port[/v1]``. Raises ConfigError for what is no such URL."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url!r} is no address like http://127.0.0.1:8000")
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        path = parts.path.rstrip("/")
        self.base = path if path.endswith("/v1") else f"{path}/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{self.base}"
        fields = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "spola-bench"} | dict(headers or {})
        if any("\r" in text or "\n" in text for pair in fields.items() for text in pair):
            raise ConfigError("a header must not hold a line break")
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request; ``path`` begins after ``/v1``."""
        content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {self.base}{path} HTTP/1.1\r\n{self._fields}{content}\r\n"
        return head.encode("latin-1", "replace") + body


class Pool:
    """Connections to ``target``, kept between requests; as many as there are requests at a time."""

    def __init__(self, target: Target, timeout_s: float = 600.0) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self._idle: list[_Connection] = []

    async def send(self, data: bytes, sink: Sink) -> tuple[int, float]:
        """Send ``data`` and feed the body of the answer to ``sink``: the status, and when ``data`` was sent.

        Raises OSError or asyncio.TimeoutError.
        """
        kept = True
        while True:
            connection = self._take()
            if connection is None:
                kept, connection = False, await self._connect()
            try:
                sent = time.perf_counter()
                status = await asyncio.wait_for(connection.exchange(data, sink), self.timeout_s)
            except ConnectionError:
                if kept and not connection.answered:
                    continue  # the server had closed it while it lay idle
                raise
            finally:
                if connection.reusable:
                    self._idle.append(connection)
                else:
                    connection.close()
            return status, sent

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
        return None

    async def _connect(self) -> _Connection:
        target, loop = self.target, asyncio.get_running_loop()
        opening = loop.create_connection(_Connection, target.host, target.port, ssl=target.tls)
        _, connection = await asyncio.wait_for(opening, CONNECT_S)
        return connection


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = False
        self.reusable = False
        self.answered = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._done: asyncio.Future[int] | None = None
        self._sink: Sink | None = None
        self._at = 0.0

    async def exchange(self, data: bytes, sink: Sink) -> int:
        """Send one request; the status once its answer is whole."""
        assert self._transport is not None
        if self.lost:
            raise ConnectionResetError("the server closed the connection")
        self.reusable = self.answered = False
        self._sink = sink
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._at = time.perf_counter()
        self.answered = True
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the answer is no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.reusable = False
        self._fail(ConnectionResetError(f"the connection was lost{f': {error}' if error else ''}"))

    # httptools

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.feed(data, self._at)

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done() and self._parser is not None:
            self.reusable = bool(self._parser.should_keep_alive()) and not self.lost
            self._done.set_result(self._parser.get_status_code())

    def _fail(self, error: ConnectionError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
