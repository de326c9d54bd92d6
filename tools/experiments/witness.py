"""A relay between clients and a server that times every request itself, by ``bench serve``'s definitions.

Each load generator gets a port of its own. Bytes pass unchanged; their times here are a third opinion about
the same requests: on the way in after the client, on the way out before it, so that a request can only look
shorter here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httptools

from spola.bench.exchange import EventReader, Sample

__all__ = ["Witness", "witnessed"]


@dataclass
class Witness:
    """What passed through one port: a Sample of each POST, in the order they came."""

    url: str = ""
    samples: list[Sample] = field(default_factory=list)


class _Exchange:
    """The parsers of one connection. A client sends its next request when the last answer is whole."""

    def __init__(self, seen: Witness) -> None:
        self._seen = seen
        self._sample: Sample | None = None
        self._reader: EventReader | None = None
        self._request = httptools.HttpRequestParser(self)
        self._response: httptools.HttpResponseParser | None = None
        self._began = 0.0
        self._at = 0.0

    def asked(self, data: bytes) -> None:
        self._at = time.perf_counter()
        self._request.feed_data(data)

    def answered(self, data: bytes) -> None:
        self._at = time.perf_counter()
        if self._response is None:
            self._response = httptools.HttpResponseParser(_Body(self))
        self._response.feed_data(data)

    # httptools, of the request

    def on_message_begin(self) -> None:
        self._began = self._at

    def on_headers_complete(self) -> None:
        self._sample = self._reader = None
        if self._request.get_method() == b"POST":
            self._sample = Sample(self._began, self._began)
            self._reader = EventReader(self._sample)
            self._seen.samples.append(self._sample)

    def body(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(data, self._at)

    def whole(self) -> None:
        status = 0 if self._response is None else self._response.get_status_code()
        self._response = None
        sample, reader = self._sample, self._reader
        if sample is None or reader is None:
            return
        if status != 200:
            sample.error = f"HTTP {status}"
        elif not sample.error and not (reader.done and sample.finish is not None and sample.events):
            sample.error = "the stream ended without text, a finish reason and [DONE]"


class _Body:
    """What httptools says of the answer; its names are also those of the request's."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def on_body(self, data: bytes) -> None:
        self._exchange.body(data)

    def on_message_complete(self) -> None:
        self._exchange.whole()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: object) -> None:
    assert callable(note)
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            note(data)
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError, OSError):
        writer.write_eof()


async def _relay(
    host: str, port: int, seen: Witness, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    exchange = _Exchange(seen)
    there, back = await asyncio.open_connection(host, port)
    try:
        await asyncio.gather(_pipe(reader, back, exchange.asked), _pipe(there, writer, exchange.answered))
    finally:
        for stream in (back, writer):
            stream.close()


@contextmanager
def witnessed(host: str, port: int, n: int) -> Iterator[list[Witness]]:
    """``n`` ports in front of ``host:port``, served by a thread until the block ends."""
    witnesses = [Witness() for _ in range(n)]
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        servers = []
        for seen in witnesses:

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Witness = seen
            ) -> None:
                await _relay(host, port, seen, reader, writer)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers.append(server)
        ready.set()
        await stop.wait()
        for server in servers:
            server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield witnesses
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
