"""Signals at every time of a server's life (trouble R38): in loading, in a prompt, twice, as process 1."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from spola.server.serve import bind
from support.service import tiny_file
from support.waiting import PATIENCE_S, until

# The command with an engine whose every step takes long, and with a loading that does not end.
SLOW = """
import time
from spola.backends.null import NullRunner
execute = NullRunner.execute
NullRunner.execute = lambda self, step: (time.sleep(0.3), execute(self, step))[1]
"""
ENDLESS = """
import importlib, threading
module = importlib.import_module("spola.cli.serve")
module.build_service = lambda *given, **named: threading.Event().wait()
"""
DEAR = """
import sys, time
from spola.text.grammar import Grammars
compiled = Grammars._compiled
def dear(self, text, param):
    print("compiling", file=sys.stderr, flush=True)
    time.sleep(5)
    return compiled(self, text, param)
Grammars._compiled = dear
"""
RUN = "\nfrom spola.__main__ import main\nmain()\n"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_file(tmp_path, context=2048))


class Process:
    """A server that has taken ``port``, with what it says on stderr."""

    def __init__(self, popen: subprocess.Popen[str], port: int) -> None:
        self.popen = popen
        self.port = port
        self.open: list[http.client.HTTPConnection] = []

    def get(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status
        except ConnectionError:
            return 0
        finally:
            connection.close()

    def ask(self, **body: object) -> http.client.HTTPResponse:
        """The beginning of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        self.open.append(connection)
        connection.request("POST", "/v1/completions", json.dumps({"ignore_eos": True, **body}))
        return connection.getresponse()

    def says(self, words: str) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            if words in line:
                return
        pytest.fail(f"it never said {words!r}")

    def gone(self) -> int:
        """Its exit code; the port is free then."""
        code = self.popen.wait(PATIENCE_S)
        bind("127.0.0.1", self.port).close()
        return code


@contextmanager
def process(change: str, model: str, *more: str, front: tuple[str, ...] = ()) -> Iterator[Process]:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    command = [*front, sys.executable, "-c", change + RUN, "serve", "--backend", "null", "-m", model]
    with subprocess.Popen([*command, "--port", str(port), *more], stderr=subprocess.PIPE, text=True) as popen:
        running = Process(popen, port)
        try:
            until(lambda: popen.poll() is not None or running.get("/health"))
            yield running
        finally:
            popen.kill()
            for connection in running.open:
                connection.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_server_that_loads_says_so_and_leaves_at_once(
    model: str, number: signal.Signals, code: int
) -> None:
    with process(ENDLESS, model, "--drain-timeout", "600") as server:
        assert server.get("/health") == server.get("/v1/models") == 503
        answer = server.ask(prompt="a")
        assert (answer.status, answer.headers["retry-after"] is not None) == (503, True)
        server.popen.send_signal(number)
        assert server.gone() == code


def test_a_second_signal_ends_running_answers(model: str) -> None:
    with process(SLOW, model, "--drain-timeout", "600") as server:
        until(lambda: server.get("/health") == 200)
        # Longer than a test waits, unless it is ended.
        stream = server.ask(prompt="a", max_tokens=1500, stream=True)
        stream.readline()
        server.popen.send_signal(signal.SIGTERM)
        server.says("a second signal ends them")
        assert server.get("/health") in (0, 503)
        server.popen.send_signal(signal.SIGTERM)
        assert b'"error"' in stream.read()
        assert server.gone() == 0


def test_a_long_prompt_does_not_outlast_the_time_to_drain(model: str) -> None:
    with process(SLOW, model, "--drain-timeout", "0.1", "--itl-target", "1") as server:
        until(lambda: server.get("/health") == 200)
        body = {"prompt": [5] * 1800, "max_tokens": 200, "stream": True}
        stream = server.ask(**body)
        server.popen.send_signal(signal.SIGTERM)
        assert b'"error"' in stream.read()
        assert server.gone() == 0


def test_who_is_not_ready_yet_is_told(model: str) -> None:
    """A grammar that compiles longer than the server waits for what is no answer yet."""
    with process(DEAR, model) as server:
        until(lambda: server.get("/health") == 200)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.ask, prompt="a", guided_regex="a+")
            server.says("compiling")
            server.popen.send_signal(signal.SIGTERM)
            answer = asked.result()
        assert (answer.status, b"shutting down" in answer.read()) == (503, True)
        assert server.popen.stderr is not None
        said = server.popen.stderr.read()
        assert server.gone() == 0
        assert "Traceback" not in said


def test_the_port_is_taken_whatever_the_address(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            command = [sys.executable, "-m", "spola", "serve", "-m", str(broken), "--host", host, "--no-auth"]
            done = subprocess.run(
                [*command, "--port", str(port)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 1
            assert f"port {port}: Address already in use" in done.stderr


def test_process_1_of_a_container_obeys_signals(model: str) -> None:
    """The kernel ignores signals to process 1 that it has no handler for."""
    front = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    if shutil.which("unshare") is None or subprocess.run([*front, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    with process(SLOW, model, front=front) as server:
        until(lambda: server.get("/health") == 200)
        stream = server.ask(prompt="a", max_tokens=3, stream=True)
        children = Path(f"/proc/{server.popen.pid}/task/{server.popen.pid}/children").read_text().split()
        (inner,) = map(int, children)
        try:
            os.kill(inner, signal.SIGTERM)
            assert stream.read().rstrip().endswith(b"data: [DONE]")
            assert server.gone() == 0
        finally:
            if server.popen.poll() is None:
                os.kill(inner, signal.SIGKILL)
