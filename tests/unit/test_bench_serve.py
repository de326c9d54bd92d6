"""bench serve against a scripted server: known times, failures counted, load that does not wait."""

from __future__ import annotations

import json
import socket
import threading
import time
from array import array
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spola.bench.exchange import Sample
from spola.bench.figures import figures, gaps, parse_slos
from spola.bench.http import Target
from spola.bench.serve import Outcome
from spola.core.errors import ConfigError
from support.cli import spola
from support.fake_server import fake_server, stream

USAGE = {"prompt_tokens": 5, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}


def sample(intended: float, events: list[float], tokens: int | None = None, error: str = "") -> Sample:
    made = Sample(intended, sent=intended + 0.001, events=array("d", events), tokens=tokens, error=error)
    made.end = events[-1] if events else 0.0
    return made


def test_figures_of_known_times() -> None:
    samples = [
        sample(10.0, [10.5, 10.6, 10.8], tokens=5),
        sample(11.0, [11.1]),
        sample(11.0, [], error="HTTP 500: no"),
    ]
    found = figures(Outcome(samples, start=10.0, end=12.0, client_cpu=0.1), {"ttft": 200.0})
    assert (found["requests"], found["failed"], found["errors"]) == (3, 1, {"HTTP 500: no": 1})
    assert found["ttft_ms"]["mean"] == pytest.approx(300)
    assert found["tpot_ms"]["p50"] == pytest.approx(300 / 4)  # five tokens in three events
    assert found["itl_ms"]["max"] == pytest.approx(200)
    assert found["latency_ms"]["max"] == pytest.approx(800)
    assert found["output_tok_s"] == pytest.approx(6 / 2)
    assert found["request_s"] == pytest.approx(1.0)
    assert found["goodput"] == {"slo_ms": {"ttft": 200.0}, "met": 1, "share": 1 / 3, "request_s": 0.5}
    assert found["tokens_from"] == "events"
    for one in samples[:2]:
        assert one.ttft_s + sum(gaps(one)) == pytest.approx(one.latency_s)
        assert one.ttft_s + (one.tpot_s or 0.0) * (one.n - 1) == pytest.approx(one.latency_s)


def test_slos_and_urls_are_checked() -> None:
    assert parse_slos(["ttft:200", "tpot:5.5"]) == {"ttft": 200.0, "tpot": 5.5}
    for bad in ("ttft", "itl:3", "ttft:-1", "tpot:x", "ttft:nan"):
        with pytest.raises(ConfigError, match="--slo"):
            parse_slos([bad])
    assert Target("http://h:1").url == "http://h:1/v1"
    assert Target("https://h/api/v1/").url == "https://h/api/v1"
    for bad in ("h:1", "ftp://h", "http://", "http://h:99999"):
        with pytest.raises(ConfigError, match="--url"):
            Target(bad)


def test_a_closed_loop_reports_what_the_server_counted(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], connection: socket.socket) -> bool:
        return stream(connection, ["a", "b", "c"], gap=0.002, usage=USAGE)

    picture = tmp_path / "run.svg"
    with fake_server(answer) as server:
        args = (
            "--url",
            server.url,
            "--requests",
            "6",
            "--concurrency",
            "2",
            "--output",
            "3",
            "--prompt",
            "4",
        )
        done = spola("bench", "serve", *args, "--svg", str(picture), "--slo", "latency:60000", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"], found["failed"], found["tokens_from"]) == (6, 0, "usage")
    assert (found["prompt_tokens"], found["output_tokens"], found["cached_tokens"]) == (30, 24, 12)
    assert found["goodput"]["share"] == 1
    for key in ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms"):
        assert {"mean", "p50", "p95", "p99"} <= set(found[key])
    for row in found["samples"]:
        assert row["ttft_ms"] + row["tpot_ms"] * (row["tokens"] - 1) == pytest.approx(row["latency_ms"])
    body = server.bodies[-1]
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("fake", 3, True)
    assert len(body["messages"][0]["content"].split()) == 4
    assert server.connections <= 2 + 2  # kept between requests; one for the models, one to warm up
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_an_open_loop_does_not_wait_and_counts_from_the_intended_time() -> None:
    """One answer at a time, 30 ms each, asked for every 10 ms: the queue must be in the figures."""
    turn = threading.Lock()

    def answer(body: dict[str, Any], connection: socket.socket) -> bool:
        with turn:
            time.sleep(0.03)
            return stream(connection, ["a"], usage=USAGE)

    with fake_server(answer) as server:
        args = (
            "--url",
            server.url,
            "--requests",
            "12",
            "--rate",
            "100",
            "--burstiness",
            "1000",
            "--warmup",
            "0",
        )
        done = spola("bench", "serve", *args, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    at = [row["at_s"] for row in found["samples"]]
    assert at[-1] == pytest.approx(0.11)
    assert server.arrived[-1] - server.arrived[0] < 0.3  # sent long before the others were answered
    ttft = [row["ttft_ms"] for row in found["samples"]]
    assert ttft[-1] > 8 * 30 - 110  # eleven answers were in front, and the clock began when it was due
    assert "coordinated" not in done.stdout


def test_a_bound_on_requests_in_flight_does_not_hide_the_wait() -> None:
    def answer(body: dict[str, Any], connection: socket.socket) -> bool:
        time.sleep(0.03)
        return stream(connection, ["a"], usage=USAGE)

    with fake_server(answer) as server:
        args = (
            "--url",
            server.url,
            "--requests",
            "6",
            "--rate",
            "1000",
            "--concurrency",
            "1",
            "--warmup",
            "0",
        )
        done = spola("bench", "serve", *args, "--json")
    found = json.loads(done.stdout)
    assert found["samples"][-1]["ttft_ms"] >= 6 * 30 - 10
    assert found["samples"][-1]["send_lag_ms"] >= 5 * 30 - 10


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("status", "HTTP 429: slow down"),
        ("event", "the model broke"),
        ("cut", "without a finish reason"),
        ("drop", "connection was lost"),
        ("garbage", "no HTTP"),
    ],
)
def test_failures_are_counted_with_their_reason(kind: str, words: str) -> None:
    def answer(body: dict[str, Any], connection: socket.socket) -> bool:
        if body["max_tokens"] == 1 and len(server.bodies) % 2:
            return stream(connection, ["a"], usage=USAGE)
        if kind == "status":
            text = b'{"error": {"message": "slow down"}}'
            connection.sendall(b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return True
        if kind == "cut":
            return stream(connection, ["a"], end=False)
        if kind == "event":
            data = b'data: {"error": {"message": "the model broke"}}\n\n'
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            return True
        connection.sendall(b"nonsense\r\n\r\n" if kind == "garbage" else b"HTTP/1.1 200 OK\r\n")
        return False

    with fake_server(answer) as server:
        args = (
            "--url",
            server.url,
            "--requests",
            "4",
            "--concurrency",
            "1",
            "--output",
            "1",
            "--warmup",
            "0",
        )
        done = spola("bench", "serve", *args, "--json")
    found = json.loads(done.stdout)
    assert (found["requests"], found["failed"], done.returncode) == (4, 2, 0)
    assert words in next(iter(found["errors"]))
    assert sum(found["errors"].values()) == 2
    assert [row["latency_ms"] for row in found["samples"] if "error" not in row]


def test_when_all_fail_so_does_the_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    done = spola("bench", "serve", "--url", f"http://127.0.0.1:{port}", "--requests", "2")
    assert done.returncode == 1
    assert "spola: error: --url" in done.stderr
    url = ("--url", f"http://127.0.0.1:{port}", "--model", "m", "--requests", "2", "--warmup", "0")
    done = spola("bench", "serve", *url)
    assert done.returncode == 1
    assert "2 failed" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("--token-ids", "50"),
        ("--burstiness", "2"),
        ("--slo", "x:1"),
        ("--dataset", "nothing-here"),
        ("--spread", "1"),
        ("--rate", "0"),
    ],
)
def test_wrong_usage_is_refused(args: tuple[str, ...]) -> None:
    assert spola("bench", "serve", "--url", "http://127.0.0.1:1", *args).returncode == 2
