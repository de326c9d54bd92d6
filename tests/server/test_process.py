"""``spola serve`` as a process: the port first, a clean end on a signal, failures in one line."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spola.core.errors import MissingExtraError
from spola.server.options import event_loop
from spola.server.serve import bind
from support.service import tiny_file
from support.waiting import PATIENCE_S

SERVE = [sys.executable, "-m", "spola", "serve", "--backend", "null", "--port"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_file(tmp_path))


@contextmanager
def server(model: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], http.client.HTTPConnection]]:
    """A server that is ready, and a connection to it."""
    process = subprocess.Popen([*SERVE, "0", "-m", model, *more], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        sizes, line = process.stderr.readline(), process.stderr.readline()
        assert "KV cache up to" in sizes, sizes
        assert "serving" in line, line
        port = int(line.rsplit(":", 1)[1].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        yield process, connection
        connection.close()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_an_idle_server_ends_on_a_signal_and_frees_the_port(
    model: str, number: signal.Signals, code: int
) -> None:
    with server(model, "--served-model-name", "mine", "--drain-timeout", "600") as (process, connection):
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "mine"
        port = connection.port
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
        bind("127.0.0.1", port).close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_running_stream_gets_its_end_before_the_server_goes(model: str, loop: str) -> None:
    with server(model, "--event-loop", loop) as (process, connection):
        body = {"prompt": "a", "stream": True, "max_tokens": 900, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        first = response.readline()
        process.send_signal(signal.SIGTERM)
        rest = first + response.read()
        assert rest.rstrip().endswith(b"data: [DONE]") or b'"error"' in rest.splitlines()[-2]
        assert process.wait(PATIENCE_S) == 0


def test_an_event_loop_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(MissingExtraError, match=r"--event-loop .*spola\[uvloop\]"):
        event_loop("uvloop")


def test_the_trace_is_whole_after_a_signal_and_readable_after_a_kill(model: str, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        path = tmp_path / f"{number.name}.json"
        with server(model, "--trace", str(path), "--itl-target", "20") as (process, connection):
            body = {"prompt": "a", "max_tokens": 5, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            assert connection.getresponse().read()
            process.send_signal(number)
            process.wait(timeout=PATIENCE_S)
        text = path.read_text()
        if number is signal.SIGKILL:
            text = text.rstrip().removesuffix(",") + "]"
        names = [event["name"] for event in json.loads(text) if event["ph"] == "X" and event["pid"] == 2]
        assert names.count("decode") >= 4


def test_a_taken_port_fails_before_the_model_is_looked_at(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        done = subprocess.run(
            [*SERVE, str(port), "-m", str(broken)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert f"port {port}: Address already in use" in done.stderr
    assert "broken" not in done.stderr


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    done = subprocess.run([*SERVE, "0", "-m", str(broken)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "broken.gguf" in done.stderr
