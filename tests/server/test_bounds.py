"""What a server does not let happen: too much at once, too large, too deep, too slow."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spola.server.body import check_depth
from spola.server.errors import ApiError
from spola.server.options import ServerOptions
from support.running import TEXT, Running
from support.serving import Answer, ask, serving
from support.waiting import PATIENCE_S, until

LONG = {"prompt": "a", "max_tokens": 100, "ignore_eos": True}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = ServerOptions(max_queue=2, max_body=100_000, max_header=4096, read_timeout_s=0.5)
    with serving(
        tmp_path_factory.mktemp("tight"), names=("tiny", "alias"), server=server, max_seqs=1
    ) as running:
        yield running


def asked(running: Running, body: dict, n: int) -> tuple[list[threading.Thread], list[Answer]]:
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(running, "/v1/completions", body)))
        for _ in range(n)
    ]
    for thread in threads:
        thread.start()
    return threads, answers


def test_a_full_queue_refuses_and_then_goes_on(tight: Running) -> None:
    tight.parrot.delay = 0.02
    threads, answers = asked(tight, LONG, 3)
    until(lambda: tight.state.desk.live == 3)
    refused = ask(tight, "/v1/completions", LONG)
    assert (refused.status, refused.body["error"]["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert ask(tight, "/health").status == 200
    tight.parrot.delay = 0.0
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 3
    assert ask(tight, "/v1/completions", LONG).status == 200
    assert tight.state.desk.live == 0


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"queue_timeout_s": 0.1}, "before its turn"),
        ({"request_timeout_s": 0.1}, "the deadline passed"),
    ],
)
def test_who_waits_too_long_is_told(tmp_path: Path, limits: dict, said: str) -> None:
    with serving(tmp_path, server=ServerOptions(**limits), delay=0.01, max_seqs=1) as running:
        threads, answers = asked(running, LONG, 2)
        for thread in threads:
            thread.join()
        late = [answer for answer in answers if answer.status == 503]
        assert len(late) == (1 if "queue_timeout_s" in limits else 2)
        for answer in late:
            assert (answer.body["error"]["code"], answer.body["error"]["type"]) == ("timeout", "server_error")
            assert "retry-after" in answer.headers
        assert said in late[0].body["error"]["message"]
        chunks = ask(running, "/v1/completions", {**LONG, "stream": True}).data
        if "request_timeout_s" in limits:
            assert b'"code":"timeout"' in chunks


def test_the_names_of_a_model(tight: Running) -> None:
    for name in ("tiny", "alias", None):
        body = {"prompt": "a", "max_tokens": 100, "model": name}
        answer = ask(tight, "/v1/completions", body)
        assert (answer.status, answer.body["model"]) == (200, name or "tiny")
    answer = ask(tight, "/v1/completions", {"prompt": "a", "model": "other"})
    assert (answer.status, answer.body["error"]["code"]) == (404, "model_not_found")
    assert "'tiny', 'alias'" in answer.body["error"]["message"]
    assert [model["id"] for model in ask(tight, "/v1/models").body["data"]] == ["tiny", "alias"]
    assert ask(tight, "/v1/models/alias").body["id"] == "alias"
    assert ask(tight, "/v1/models/..%2f..%2fetc%2fpasswd").status == 404


def test_bodies_and_headers_have_a_size(tight: Running) -> None:
    answer = ask(tight, "/v1/completions", b'{"prompt": "' + b"a" * 100_000 + b'"}')
    assert (answer.status, "100000" in answer.body["error"]["message"]) == (413, True)
    answer = ask(tight, "/health", headers={"X-Long": "a" * 5000})
    assert (answer.status, "4096" in answer.body["error"]["message"]) == (431, True)
    assert ask(tight, "/health", headers={"X-Long": "a" * 3000}).status == 200
    assert ask(tight, "/health?" + "a" * 5000).status == 431


def test_bodies_have_a_depth(tight: Running) -> None:
    deep = b"[" * 65 + b"]" * 65
    answer = ask(tight, "/v1/completions", b'{"prompt": ' + deep + b"}")
    assert answer.status == 400
    assert "inside each other" in answer.body["error"]["message"]
    check_depth(b'{"a": "' + b"[" * 1000 + b'\\"[["}', 64)
    check_depth(b"[[],[],[]," * 20 + b"[]" + b"]" * 20, 64)
    with pytest.raises(ApiError):
        check_depth(b'{"\\\\": ' + b"[" * 70, 64)


def connect(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"", b""),
        (b"GET /health HT", b"408"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{", b"408"),
        (b"\x16\x03\x01 no HTTP at all\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 5000, b"431"),
    ],
)
def test_half_a_request_is_not_waited_for(tight: Running, said: bytes, status: bytes) -> None:
    with connect(tight) as connection:
        connection.sendall(said)
        got = b"".join(iter(lambda: connection.recv(65536), b""))
    assert status in got.split(b"\r\n")[0]
    assert ask(tight, "/health").status == 200


def test_an_endless_header_ends(tight: Running) -> None:
    with connect(tight) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises(OSError):  # noqa: PT012 - reset or broken pipe, at once or some pieces later
            for _ in range(10_000):
                connection.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")
                time.sleep(0.0001)
    assert ask(tight, "/health").status == 200


def test_every_answer_has_an_id(running: Running) -> None:
    assert ask(running, "/health", headers={"X-Request-Id": "mine-7"}).headers["x-request-id"] == "mine-7"
    ids = {ask(running, path).headers["x-request-id"] for path in ("/health", "/nothing", "/v1/models")}
    assert len(ids) == 3
    for bad in ("a" * 200, "a b", "<script>", "é"):
        assert (
            ask(running, "/health", headers={"X-Request-Id": bad}).headers["x-request-id"].startswith("req-")
        )


def test_health_tells_a_server_that_hangs(tmp_path: Path) -> None:
    with serving(tmp_path, server=ServerOptions(stall_s=0.2)) as running:
        assert ask(running, "/v1/completions", {"prompt": "a"}).status == 200
        time.sleep(0.3)
        assert ask(running, "/health").status == 200  # nothing to do is fine
        running.parrot.delay = 0.6
        threads, answers = asked(running, {"prompt": "a", "max_tokens": 2}, 1)
        until(lambda: ask(running, "/health").status == 503)
        running.parrot.delay = 0.0
        for thread in threads:
            thread.join()
        assert answers[0].status == 200
        assert ask(running, "/health").status == 200


def test_a_server_that_loads_or_leaves_says_so(running: Running) -> None:
    state = running.state
    desk, state.desk = state.desk, None
    try:
        for path, body in (("/health", None), ("/v1/models", None), ("/v1/completions", LONG)):
            answer = ask(running, path, body)
            assert (answer.status, "loading" in answer.body["error"]["message"]) == (503, True)
            assert "retry-after" in answer.headers
    finally:
        state.desk = desk
    state.leaving = True
    try:
        assert ask(running, "/v1/completions", LONG).status == 503
    finally:
        state.leaving = False
    assert (
        ask(running, "/v1/completions", {"prompt": "a", "max_tokens": 100}).body["choices"][0]["text"] == TEXT
    )
