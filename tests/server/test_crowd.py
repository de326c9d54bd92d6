"""Many connections at once, and clients that misbehave: nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spola.server import connections
from spola.server.options import ServerOptions, event_loop
from support.running import TEXT, Running
from support.serving import ask, serving
from support.waiting import PATIENCE_S, until

STREAM = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
# Of 120,000 bytes, when an event has its logprobs.
WORDY = {**STREAM, "logprobs": 5, "return_token_ids": True, "max_tokens": 250}


@pytest.fixture(params=["asyncio", "uvloop"])
def looped(request: pytest.FixtureRequest) -> ServerOptions:
    return ServerOptions(new_loop=event_loop(request.param))


@pytest.fixture
def crowded(tmp_path: Path, looped: ServerOptions) -> Iterator[Running]:
    with serving(tmp_path, server=looped, max_model_len=1024, max_seqs=64) as running:
        yield running


def opened(running: Running, body: dict | None = None, receive: int | None = None) -> socket.socket:
    """A connection, on which ``body`` has been asked if there is one; ``receive``: bytes of its buffer."""
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(PATIENCE_S)
    if receive is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)  # counts only before connecting
    connection.connect((host, int(port)))
    if body is not None:
        data = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(data)
        connection.sendall(head + data)
    return connection


def answers(running: Running) -> None:
    answer = ask(running, "/v1/completions", {"prompt": "control", "max_tokens": 200})
    assert answer.body["choices"][0]["text"] == TEXT


def test_five_hundred_connections_that_say_nothing_or_half(crowded: Running) -> None:
    with ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(opened(crowded))
            if number % 2:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
        answers(crowded)
        assert ask(crowded, "/health").status == 200
    answers(crowded)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's side of a connection holds little; else the system takes megabytes for a client."""

    def small(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(connections, "_probe_when_silent", small)


def noting(monkeypatch: pytest.MonkeyPatch, name: str) -> set[int]:
    """Connections of whose protocol the method ``name`` was called."""
    called: set[int] = set()
    real = getattr(HttpToolsProtocol, name)

    def noted(self: HttpToolsProtocol, *given: object) -> None:
        called.add(id(self))
        real(self, *given)

    monkeypatch.setattr(HttpToolsProtocol, name, noted)
    return called


@pytest.mark.usefixtures("small_buffers")
def test_fifty_clients_that_never_read(crowded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is said to each than all buffers hold: what it does not take waits for it, and for nobody else."""
    paused = noting(monkeypatch, "pause_writing")
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(opened(crowded, WORDY, receive=4096))
        until(lambda: len(paused) == 50)
        answers(crowded)
        # Their answers end all the same, and give back what they held.
        until(lambda: crowded.state.desk.live == 0)
        assert crowded.service.metrics.kv_used == 0
        answers(crowded)
        # What waits is one piece for each, no longer than the answer.
        tickets = [ticket for ticket, _, _ in crowded.state.desk._board.places.values()]
        assert len(tickets) == 50
        waiting = [delta for ticket in tickets for delta in ticket._waiting.values()]
        assert 0 < len(waiting) <= 50
        assert all(0 < len(delta.token_ids) <= WORDY["max_tokens"] for delta in waiting)
    until(lambda: not crowded.state.desk.busy)


@pytest.mark.usefixtures("small_buffers")
def test_a_client_that_reads_nothing_is_let_go(
    tmp_path: Path, looped: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = noting(monkeypatch, "connection_lost")
    server = replace(looped, write_timeout_s=0.3)
    with (
        serving(tmp_path, server=server, max_model_len=1024) as running,
        opened(running, WORDY, receive=4096),
    ):
        until(lambda: lost)  # though this side is open
        until(lambda: not running.state.desk.busy)
        assert running.get("/health")[0] == 200


def test_who_has_gone_without_a_word_is_looked_for(crowded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open connections: the system probes a peer that is silent, and then closes the connection."""
    asked: list[tuple[int, int]] = []
    probe = connections._probe_when_silent

    def noted(connection: socket.socket) -> None:
        probe(connection)
        options = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
        asked.append(tuple(connection.getsockopt(*option) for option in options))

    monkeypatch.setattr(connections, "_probe_when_silent", noted)
    answers(crowded)
    assert asked == [(1, connections.KEEPALIVE_S)]


def test_clients_that_leave_at_any_time_leave_nothing(crowded: Running) -> None:
    crowded.parrot.delay = 0.002
    for number in range(60):
        connection = opened(crowded, {**STREAM, "stream": bool(number % 2)})
        time.sleep(0.001 * (number % 20))
        connection.close()
    until(lambda: not crowded.state.desk.busy)
    until(lambda: crowded.service.metrics.kv_used == 0)
    crowded.parrot.delay = 0.0
    answers(crowded)


def test_a_client_that_leaves_in_its_prompt_stops_it(tmp_path: Path) -> None:
    with serving(tmp_path, max_model_len=1024, max_step_tokens=32) as running:
        running.parrot.delay = 0.02
        connection = opened(running, {"prompt": [5] * 1000, "max_tokens": 5})
        until(lambda: running.service.metrics.steps >= 5)
        connection.close()
        until(lambda: not running.state.desk.busy)
        begun = running.service.metrics.steps
        until(lambda: running.service.metrics.finished["abort"] == 1)
        assert running.service.metrics.steps <= begun + 1
        assert running.service.metrics.steps < 25
        assert running.service.metrics.kv_used == 0
