"""A scripted OpenAI-compatible server on a thread: what it answers, and when, is the test's to say."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FakeServer", "chunk", "fake_server", "stream"]

Answer = Callable[[dict[str, Any], socket.socket], bool]


@dataclass
class FakeServer:
    """``answer(body, connection)`` writes a response to a POST; True keeps the connection."""

    answer: Answer
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    connections: int = 0


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(
    connection: socket.socket,
    texts: list[str],
    *,
    gap: float = 0.0,
    usage: dict[str, Any] | None = None,
    end: bool = True,
) -> bool:
    """A good stream of one event for each of ``texts``; ``end`` False leaves out what ends it well."""
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    def event(value: Any) -> None:
        connection.sendall(chunk(b"data: " + json.dumps(value).encode() + b"\n\n"))

    event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for text in texts:
        time.sleep(gap)
        event({"choices": [{"delta": {"content": text}}]})
    if end:
        event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        if usage is not None:
            event({"choices": [], "usage": usage})
        connection.sendall(chunk(b"data: [DONE]\n\n"))
    connection.sendall(b"0\r\n\r\n")
    return True


@contextmanager
def fake_server(answer: Answer) -> Iterator[FakeServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = FakeServer(answer, f"http://127.0.0.1:{listener.getsockname()[1]}")
    threads: list[threading.Thread] = []
    lock = threading.Lock()

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while line := file.readline():
                length = 0
                while (header := file.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                if line.startswith(b"GET"):
                    body = json.dumps({"data": [{"id": "fake"}]}).encode()
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                    connection.sendall(head.encode() + body)
                    continue
                body = json.loads(file.read(length))
                with lock:
                    server.bodies.append(body)
                    server.arrived.append(time.perf_counter())
                if not server.answer(body, connection):
                    return

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            thread = threading.Thread(target=talk, args=(connection,), daemon=True)
            thread.start()
            threads.append(thread)

    acceptor = threading.Thread(target=serve, daemon=True)
    acceptor.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for thread in threads:
            thread.join(5)
