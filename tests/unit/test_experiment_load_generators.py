"""The comparison with another load generator: what the relay sees, and what is made of a report."""

from __future__ import annotations

import importlib
import json
import runpy
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.cli import spola
from support.fake_server import fake_server, stream

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "experiments"
sys.path.insert(0, str(FOLDER))

witnessed = importlib.import_module("witness").witnessed
USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "load_generators.py"))


def test_the_relay_sees_each_request_no_longer_than_its_client(tool: dict[str, Any]) -> None:
    def answer(body: dict[str, Any], connection: socket.socket) -> bool:
        return stream(connection, ["a", "b", "c"], gap=0.002, usage=USAGE)

    with fake_server(answer) as server:
        parts = urlsplit(server.url)
        with witnessed(parts.hostname, parts.port, 2) as (left, right):
            args = ("--url", right.url, "--requests", "6", "--concurrency", "1", "--warmup", "0")
            done = spola("bench", "serve", *args, "--output", "3", "--json")
            assert done.returncode == 0, done.stderr
    assert left.samples == []
    document = json.loads(done.stdout)
    assert [sample.error for sample in right.samples] == [""] * 6
    assert [sample.tokens for sample in right.samples] == [3] * 6
    mine, relay = tool["of_bench"](document), tool["of_samples"](right.samples)
    assert len(relay["itl_ms"]) == 6 * 2
    for name in ("ttft_ms", "latency_ms"):
        assert all(0 < seen <= told for told, seen in zip(mine[name], relay[name], strict=True))
    found = tool["side"](mine, document["output_tok_s"], right)
    assert (found["requests"], found["seen"]) == (6, 6)
    assert found["ttft_ms"]["added"] >= 0
    told = {"itl_ms": 1.0, "tpot_with_first_ms": 2.0, "output_tok_s": 3.0}
    lines = tool["table"]([{"spola": found, "guidellm": found | {"printed": told}}] * 3)
    assert len({line.count("|") for line in lines[:-1]}) == 1
    assert "nan" not in "".join(lines)
    assert lines[-1].startswith("GuideLLM prints an ITL of 1.00")


@pytest.mark.parametrize("kind", ["status", "cut"])
def test_the_relay_counts_failures(kind: str) -> None:
    def answer(body: dict[str, Any], connection: socket.socket) -> bool:
        if kind == "cut":
            return stream(connection, ["a"], end=False)
        connection.sendall(b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\n{}")
        return True

    with fake_server(answer) as server:
        parts = urlsplit(server.url)
        with witnessed(parts.hostname, parts.port, 1) as (seen,):
            args = ("--url", seen.url, "--requests", "2", "--concurrency", "1", "--warmup", "0")
            spola("bench", "serve", *args)
    assert [bool(sample.error) for sample in seen.samples] == [True, True]


def row(start: float, ttft: float, itl: float) -> dict[str, float]:
    return {
        "request_start_time": start,
        "time_to_first_token_ms": ttft,
        "inter_token_latency_ms": itl,
        "request_latency": 0.5,
    }


def test_a_report_of_the_other_is_read_by_meaning_and_not_by_name(tool: dict[str, Any]) -> None:
    """Its ITL is the time per token after the first, spola's TPOT; its TPOT has the first token in it."""
    summary = {"successful": {"mean": 9.0}}
    names = ("time_per_output_token_ms", "inter_token_latency_ms", "output_tokens_per_second")
    report = {
        "benchmarks": [
            {
                "requests": {"successful": [row(2.0, 20.0, 5.0), row(1.0, 10.0, 4.0)]},
                "metrics": dict.fromkeys(names, summary),
            }
        ]
    }
    assert tool["of_guidellm"](report) == {
        "ttft_ms": [10.0, 20.0],
        "tpot_ms": [4.0, 5.0],
        "latency_ms": [500.0, 500.0],
    }
    assert tool["printed"](report)["tpot_with_first_ms"] == 9.0


def test_the_requests_of_a_round_are_the_same_for_both(tool: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    tool["dataset"](path, 4, 10, 7, seed=3)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["prompt"] for line in rows}) == 4
    assert all((len(line["prompt"].split()), line["output_tokens"]) == (10, 7) for line in rows)
    assert all(line["output_tokens_count"] == 7 for line in rows)


def test_without_the_other_it_says_so(tool: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert tool["main"](["--guidellm", "/nowhere/guidellm"]) == 0
    assert capsys.readouterr().out.startswith("skipped: no /nowhere/guidellm")
