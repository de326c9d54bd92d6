"""Many connections at once, and clients that misbehave: nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.running import TEXT, Running
from support.serving import ask, serving
from support.waiting import PATIENCE_S, until

STREAM = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path, max_model_len=1024, max_seqs=64) as running:
        yield running


def opened(running: Running, body: dict | None = None) -> socket.socket:
    """A connection, on which ``body`` has been asked if there is one."""
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
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


def test_fifty_clients_that_never_read(crowded: Running) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(opened(crowded, {**STREAM, "max_tokens": 120}))
        until(lambda: crowded.state.desk.live >= 1)
        answers(crowded)
        # Their answers end all the same: what waits for them is as long as the answers.
        until(lambda: crowded.state.desk.live == 0)
        assert crowded.service.metrics.kv_used == 0
        waiting = [ticket for ticket, _, _ in crowded.state.desk._board.places.values()]
        assert all(len(ticket._waiting) <= 1 for ticket in waiting)
    until(lambda: not crowded.state.desk.busy)


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
