"""spola bench serve against spola's own server."""

from __future__ import annotations

import json

from spola.core.quantiles import percentile
from support.cli import spola
from support.running import Running


def test_its_figures_are_those_of_the_server(running: Running) -> None:
    before = running.service.metrics.as_dict()
    args = ("--url", running.url, "--requests", "20", "--concurrency", "4", "--prompt", "8", "--output", "12")
    done = spola("bench", "serve", *args, "--endpoint", "completions", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["model"], found["failed"], found["output_tokens"]) == ("tiny", 0, 20 * 12)
    rows = found["samples"]
    assert all(row["tokens"] == 12 and row["finish_reason"] == "length" for row in rows)
    assert found["ttft_ms"]["p50"] == percentile(sorted(row["ttft_ms"] for row in rows), 50)
    assert running.service.metrics.as_dict() != before


def test_token_ids_have_the_length_that_was_asked_for(running: Running) -> None:
    args = ("--url", running.url, "--requests", "5", "--prompt", "17", "--output", "2", "--warmup", "0")
    done = spola("bench", "serve", *args, "--endpoint", "completions", "--token-ids", "200", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["prompt_tokens"] for row in json.loads(done.stdout)["samples"]] == [17] * 5
