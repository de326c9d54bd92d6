"""/metrics, /version, /tokenize, /detokenize: what is counted is what clients were told."""

from __future__ import annotations

import hashlib
import math
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spola.server.keys import Key, KeyRing
from spola.server.metrics import TABLE
from spola.server.options import ServerOptions
from support.running import Running
from support.serving import ask, serving
from support.waiting import until


def scrape(running: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the page: name and labels -> value."""
    answer = ask(running, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    out = {}
    for family in text_string_to_metric_families(answer.data.decode()):
        for sample in family.samples:
            assert math.isfinite(sample.value)
            at = (sample.name, tuple(sorted(sample.labels.items())))
            assert at not in out
            out[at] = sample.value
    return out


def value(page: dict, name: str, **labels: str) -> float:
    found = [number for (one, at), number in page.items() if one == name and set(labels.items()) <= set(at)]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_counters_are_the_sums_of_usage(tmp_path: Path) -> None:
    server = ServerOptions(keys=KeyRing())
    with serving(tmp_path, names=("tiny", "other"), server=server) as running:
        before = scrape(running)
        assert value(before, "vllm:generation_tokens_total", model_name="tiny") == 0
        prompt = "x" * 100
        usages = []
        for body in (
            {"prompt": prompt, "max_tokens": 30},
            {"prompt": prompt, "max_tokens": 30, "model": "other"},
            {"prompt": prompt, "max_tokens": 30, "stop": "mat"},
            {"prompt": ["a", "b"], "max_tokens": 5, "n": 2, "ignore_eos": True},
        ):
            answer = ask(running, "/v1/completions", body)
            assert answer.status == 200
            usages.append(answer.body["usage"])
        assert ask(running, "/v1/completions", {"prompt": 5}).status == 400
        page = scrape(running)
        for prefix in ("vllm:", "spola:"):
            for metric, field in (("prompt", "prompt"), ("generation", "completion")):
                told = sum(usage[f"{field}_tokens"] for usage in usages)
                assert value(page, f"{prefix}{metric}_tokens_total") == told
        cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
        assert cached > 0
        assert value(page, "spola:cached_tokens_total") == cached
        assert value(page, "spola:key_generation_tokens_total", key="none") == value(
            page, "spola:generation_tokens_total"
        )
        prompts = value(page, "spola:prompt_tokens_total")
        assert value(page, "spola:key_prompt_tokens_total", key="none") == prompts
        reasons = ("stop", "length", "abort", "error")
        ended = [value(page, "vllm:request_success_total", finished_reason=reason) for reason in reasons]
        assert ended == [1, 6, 0, 0]
        assert value(page, "vllm:time_to_first_token_seconds_count") == 7
        assert value(page, "vllm:e2e_request_latency_seconds_bucket", le="+Inf") == 7
        assert value(page, "vllm:num_requests_running") == value(page, "vllm:num_requests_waiting") == 0
        assert value(page, "spola:http_requests_total", route="/v1/completions", status="400") == 1
        assert value(page, "spola:key_requests_total", key="none") == 4
        # Nothing falls from one reading to the next.
        again = scrape(running)
        for at, number in page.items():
            if at[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert again[at] >= number


def test_what_fails_and_who_leaves_is_counted_apart(tmp_path: Path) -> None:
    """R40: neither adds to the requests that ended well, and their tokens are those that were made."""
    with serving(tmp_path) as running:
        good = ask(running, "/v1/completions", {"prompt": "a", "max_tokens": 7, "ignore_eos": True})
        running.parrot.broken = "no luck"
        assert ask(running, "/v1/completions", {"prompt": "a", "max_tokens": 7}).status == 500
        running.parrot.broken, running.parrot.delay = None, 0.01
        with socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1]))) as leaves:
            body = b'{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true}'
            leaves.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            until(lambda: value(scrape(running), "spola:num_requests_running") == 1)
        # The desk forgets at once; the engine counts at the end of the step under way.
        until(lambda: value(scrape(running), "spola:request_success_total", finished_reason="abort"))
        page = scrape(running)
        ended = {
            reason: value(page, "spola:request_success_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        assert ended == {"stop": 0, "length": 1, "abort": 1, "error": 1}
        assert value(page, "spola:http_requests_total", route="/v1/completions", status="500") == 1
        tokens = value(page, "spola:generation_tokens_total")
        assert good.body["usage"]["completion_tokens"] <= tokens < 200
        assert value(page, "spola:time_to_first_token_seconds_count") in (1, 2)


def test_time_is_told_as_the_client_sees_it(tmp_path: Path) -> None:
    with serving(tmp_path, delay=0.02) as running:
        started = time.monotonic()
        body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
        usage = ask(running, "/v1/completions", body).body["usage"]
        took = time.monotonic() - started
        page = scrape(running)
        assert usage["completion_tokens"] == 20
        per_token = value(page, "vllm:request_time_per_output_token_seconds_sum")
        assert 0.02 <= per_token < 2 * took / 20
        assert value(page, "vllm:inter_token_latency_seconds_sum") == pytest.approx(per_token * 19, rel=0.01)
        assert value(page, "vllm:e2e_request_latency_seconds_sum") <= took
        names = [f"vllm:request_{part}_time_seconds_sum" for part in ("queue", "prefill", "decode")]
        parts = [value(page, name) for name in names]
        assert sum(parts) == pytest.approx(value(page, "vllm:e2e_request_latency_seconds_sum"), abs=1e-6)


def test_running_waiting_and_blocks_while_it_runs(tmp_path: Path) -> None:
    with serving(tmp_path, delay=0.01, max_seqs=1) as running:
        connections = []
        body = b'{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        host, port = running.url.removeprefix("http://").split(":")
        for _ in range(3):
            connections.append(socket.create_connection((host, int(port))))
            connections[-1].sendall(head + body)
        until(lambda: value(scrape(running), "vllm:num_requests_waiting") == 2)
        page = scrape(running)
        assert value(page, "vllm:num_requests_running") == 1
        assert 0 < value(page, "vllm:kv_cache_usage_perc") <= 1
        assert value(page, "spola:kv_blocks", state="used") >= 1
        # One leaves from the queue, one while it decodes: both give back what they held, at once.
        connections.pop().close()
        until(lambda: value(scrape(running), "spola:key_disconnects_total", key="none") == 1)
        for connection in connections:
            connection.close()
        until(lambda: value(scrape(running), "spola:kv_blocks", state="used") == 0)
        page = scrape(running)
        assert value(page, "spola:key_disconnects_total", key="none") == 3
        assert value(page, "vllm:request_success_total", finished_reason="abort") == 3
        assert value(page, "vllm:generation_tokens_total") < 200


def test_every_row_has_a_name_and_a_meaning() -> None:
    names = [row.name for row in TABLE]
    assert len(set(names)) == len(names)
    for row in TABLE:
        assert row.doc[0].isupper()
        assert not row.name.endswith("_total")


def test_names_of_keys_are_told_and_secrets_are_not(tmp_path: Path) -> None:
    secret = "secret-of-alice-0123"
    ring = KeyRing([Key("alice", digest=hashlib.sha256(secret.encode()).digest())])
    with serving(tmp_path, server=ServerOptions(keys=ring)) as running:
        good = {"Authorization": f"Bearer {secret}"}
        assert ask(running, "/metrics").status == 401
        assert ask(running, "/v1/completions", {"prompt": "a", "max_tokens": 3}, good).status == 200
        text = ask(running, "/metrics", headers=good).data.decode()
        assert 'spola:key_generation_tokens_total{key="alice"} 3.0' in text
        assert 'status="401"' in text
        assert secret not in text


def test_version(running: Running) -> None:
    assert set(ask(running, "/version").body) == {"version"}


def test_tokenize_and_back(running: Running) -> None:
    body = {"prompt": "hello wörld", "return_token_strs": True}
    answer = ask(running, "/tokenize", body).body
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 256
    bare = ask(running, "/tokenize", {"prompt": "hello wörld", "add_special_tokens": False}).body["tokens"]
    assert answer["tokens"][-len(bare) :] == bare
    assert ask(running, "/detokenize", {"tokens": bare}).body == {"prompt": "hello wörld"}
    usage = ask(running, "/v1/completions", {"prompt": "hello wörld", "max_tokens": 1}).body["usage"]
    assert usage["prompt_tokens"] == answer["count"]


def test_tokenize_counts_messages_as_a_chat_does(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    usage = ask(running, "/v1/chat/completions", {**body, "max_tokens": 1}).body["usage"]
    assert ask(running, "/tokenize", body).body["count"] == usage["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "other": 1}, "other"),
        ("/tokenize", {"prompt": "a", "model": "x"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1], "prompt": "a"}, "prompt"),
    ],
)
def test_wrong_requests_are_named(running: Running, path: str, body: dict[str, Any], param: str) -> None:
    answer = ask(running, path, body)
    assert answer.status == (404 if param == "model" else 400)
    assert answer.body["error"]["param"] == param
