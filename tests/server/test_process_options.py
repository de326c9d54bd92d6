"""``spola serve`` as a process: keys from a file, a log for machines, several models."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from support.service import tiny_file

SERVE = [sys.executable, "-m", "spola", "serve", "--backend", "null", "--port", "0", "--json"]
SECRET = "alice-secret-0123456789"
BODY = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}


class Process:
    """A server that takes requests: its ``url`` without /v1, and ``told``, the document of --json."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        assert popen.stdout is not None
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            line = popen.stdout.readline()
            assert line, "the server did not start"
            text += line
        self.told: dict[str, Any] = json.loads(text)
        self.url = self.told["url"].removesuffix("/v1")

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, text = response.status, response.read()
        except HTTPError as error:
            with error:
                status, text = error.code, error.read()
        return status, json.loads(text) if text.startswith(b"{") else text.decode()

    def log(self) -> str:
        """Stop the server; what it wrote to stderr."""
        self.popen.send_signal(signal.SIGTERM)
        _, text = self.popen.communicate(timeout=60)
        assert self.popen.returncode == 0
        return text


@contextmanager
def process(*more: str) -> Iterator[Process]:
    with subprocess.Popen(
        [*SERVE, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_file(tmp_path))


def test_a_keys_file_decides_who_may_call_and_how_often(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[alice]\nsecret = "{SECRET}"\nrequests_per_minute = 2\n')
    # 0.0.0.0 lets others in, which is refused without keys.
    with process("-m", model, "--host", "0.0.0.0", "--keys", str(keys)) as server:
        assert server.ask("/health") == (200, {"status": "ok"})
        status, body = server.ask("/v1/completions", BODY)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert server.ask("/v1/completions", BODY, Authorization="Bearer wrong-secret-0123456")[0] == 401
        good = {"Authorization": f"Bearer {SECRET}"}
        assert [server.ask("/v1/completions", BODY, **good)[0] for _ in range(3)] == [200, 200, 429]
        status, page = server.ask("/metrics", **good)
        assert status == 200
        assert 'key="alice"' in page
        log = server.log()
        assert log.count("key=alice") >= 3
        assert SECRET not in log + page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[alice]\nsecret = "{SECRET}"\nweigth = 2\n', "weigth"),
        ("[alice\n", "keys.toml"),
    ],
)
def test_a_wrong_keys_file_ends_the_server_with_one_line(
    model: str, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "keys.toml").write_text(text)
    done = subprocess.run(
        [*SERVE, "-m", model, "--keys", str(tmp_path / "keys.toml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert SECRET not in done.stderr


def test_every_line_of_the_json_log_is_one_object(model: str) -> None:
    with process("-m", model, "--log-format", "json") as server:
        assert server.ask("/v1/completions", BODY, **{"X-Request-Id": "mine"})[0] == 200
        assert server.ask("/v1/completions", {"prompt": 5}, **{"X-Request-Id": "wrong"})[0] == 400
        assert server.ask("/no\\where?secret=1")[0] == 404
        lines = [json.loads(line) for line in server.log().splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    by_id = {line["request_id"]: line for line in lines if "request_id" in line}
    assert len(by_id) == 3
    mine = by_id["mine"]
    assert (mine["method"], mine["path"], mine["status"]) == ("POST", "/v1/completions", 200)
    assert (mine["completion_tokens"], mine["finish"]) == (2, "length")
    assert mine["duration_ms"] >= 0
    assert by_id["wrong"]["status"] == 400
    assert "completion_tokens" not in by_id["wrong"]
    assert any("serving" in line["message"] for line in lines)
    assert "secret" not in json.dumps(lines)


def test_log_format_off_is_silent_about_requests(model: str) -> None:
    with process("-m", model, "--log-format", "off") as server:
        assert server.ask("/v1/completions", BODY)[0] == 200
        assert "/v1/completions" not in server.log()


def test_several_models_answer_by_their_names(model: str) -> None:
    with process("-m", f"one={model}", "-m", f"two={model}") as server:
        assert server.told["names"] == ["one", "two"]
        status, body = server.ask("/v1/models")
        assert (status, [entry["id"] for entry in body["data"]]) == (200, ["one", "two"])
        for name in ("two", "one"):
            status, body = server.ask("/v1/completions", {**BODY, "model": name})
            assert (status, body["model"], body["usage"]["completion_tokens"]) == (200, name, 2)
        assert server.ask("/v1/completions", BODY)[1]["model"] == "one"
        status, body = server.ask("/v1/completions", {**BODY, "model": "three"})
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert "'one'" in body["error"]["message"]
        assert "'two'" in body["error"]["message"]


def test_a_name_for_two_models_is_refused(model: str) -> None:
    done = subprocess.run(
        [*SERVE, "-m", f"one={model}", "-m", f"one={model}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "one" in done.stderr.splitlines()[-1]
