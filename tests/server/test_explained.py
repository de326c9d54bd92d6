"""explain: what ``run --explain`` shows comes after the answer, with the numbers of its logprobs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from spola.core.errors import SpolaError
from spola.runtime.desk import MOST_EXPLAINED
from spola.runtime.limits import MachineLimits
from spola.server import explained
from support.running import Running
from support.serving import ask, serving

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True, "seed": 3}
LIMITS = MachineLimits("x", 1e10, {"f32": 1e11, "a8": 4e11, "a16": 2e11})


@pytest.fixture(scope="module")
def computing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("model"), backend="reference") as running:
        yield running


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explained, "kept_limits", lambda machine, threads: LIMITS)


def chunks(running: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    data = ask(running, path, body | {"stream": True}).data.decode()
    lines = [line.removeprefix("data: ") for line in data.splitlines() if line]
    assert lines.pop() == "[DONE]", data
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "top_k": 4}])
def test_the_numbers_are_those_of_the_logprobs(computing: Running, settings: dict[str, Any]) -> None:
    plain = {"logprobs": True, "top_logprobs": 10, "return_token_ids": True}
    body = CHAT | settings | plain
    status, without = computing.post("/v1/chat/completions", body)
    assert status == 200
    assert "explain" not in without
    status, found = computing.post("/v1/chat/completions", body | {"explain": True})
    assert status == 200
    choice, told = found["choices"][0], found.pop("explain")
    assert choice == without["choices"][0]
    listed = choice["logprobs"]["content"]
    assert [token["id"] for token in told["tokens"]] == choice["token_ids"]
    for token, entry in zip(told["tokens"], listed, strict=True):
        assert token["logprob"] == entry["logprob"]
        assert [best["logprob"] for best in token["best"]] == [
            top["logprob"] for top in entry["top_logprobs"]
        ]
        for best in token["best"]:
            assert math.log(best["probability"]) == pytest.approx(best["logprob"], abs=1e-5)
            assert best["drawn"] == (best["id"] == token["id"])
        if settings:
            assert sum(best["after_filters"] for best in token["best"]) == pytest.approx(1)
            assert [best["after_filters"] > 0 for best in token["best"]] == [True] * 4 + [False] * 6
    steps = told["steps"]
    assert [step["phase"] for step in steps] == ["prefill", *["decode"] * 4]
    assert [step["new_tokens"] for step in steps] == [[token] for token in choice["token_ids"]]
    assert sum(step["rows"] for step in steps) == found["usage"]["total_tokens"] - 1
    assert all(step["bound_s"] >= step["bytes_read"] / LIMITS.read for step in steps)


def test_a_stream_ends_with_the_same_explanation(computing: Running) -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "one two", "max_tokens": 3}),
    ):
        asked = body | {"explain": True}
        whole = computing.post(path, asked)[1]
        got = chunks(computing, path, asked | {"stream_options": {"include_usage": True}})
        assert got[-1]["usage"] == whole["usage"] | {"timing": got[-1]["usage"]["timing"]}
        parts = [chunk["explain"] for chunk in got if "explain" in chunk]
        assert all(chunk["choices"] == [] for chunk in got if "explain" in chunk)
        assert [len(part["tokens"]) for part in parts] == [0] + [1] * len(whole["explain"]["tokens"])
        # The prompt comes from the prefix cache by now: the steps are others, the tokens the same.
        assert [token for part in parts for token in part["tokens"]] == whole["explain"]["tokens"]
        assert parts[0]["steps"][-1]["position"] == whole["explain"]["steps"][-1]["position"]


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("chat/completions", {"max_tokens": 129}, "at most 128 tokens"),
        ("chat/completions", {"n": 2}, "one choice"),
        ("chat/completions", {"min_tokens": 2}, "min_tokens"),
        ("chat/completions", {"allowed_token_ids": [5]}, "allowed_token_ids"),
        ("chat/completions", {"bad_words": ["x"]}, "bad_words"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "structured_outputs"),
        ("chat/completions", {"logprobs": True, "logprobs_mode": "processed"}, "logprobs_mode"),
        ("completions", {"prompt": ["a", "b"]}, "one prompt"),
        ("completions", {"prompt": "a", "echo": True}, "echo"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    computing: Running, path: str, more: dict[str, Any], said: str
) -> None:
    body = (CHAT if path.startswith("chat") else {"max_tokens": 2}) | more | {"explain": True}
    status, found = computing.post(f"/v1/{path}", body)
    assert status == 400
    assert found["error"]["param"] == "explain"
    assert said in found["error"]["message"]


def test_an_explanation_that_fails_is_an_error(computing: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(service: object, job: object) -> Iterator[dict[str, Any]]:
        raise SpolaError("the logits are gone")
        yield {}

    monkeypatch.setattr(explained, "explain_tokens", failing)
    status, found = computing.post("/v1/chat/completions", CHAT | {"explain": True})
    assert status == 500
    assert found["error"]["message"] == "the logits are gone"
    data = ask(computing, "/v1/chat/completions", CHAT | {"explain": True, "stream": True}).data.decode()
    assert json.loads(data.strip().splitlines()[-1].removeprefix("data: ")) == found


def test_without_max_tokens_an_explained_answer_has_at_most_128(computing: Running) -> None:
    body = {"prompt": "x", "max_tokens": None, "explain": True}
    assert computing.post("/v1/completions", body)[1]["usage"]["completion_tokens"] <= 16
    body = {name: value for name, value in CHAT.items() if name != "max_tokens"} | {"explain": True}
    assert computing.post("/v1/chat/completions", body)[1]["usage"]["completion_tokens"] == 128


def test_too_many_that_wait_are_refused(computing: Running) -> None:
    desk = computing.state.open_desk()
    desk.explaining._waiting = MOST_EXPLAINED
    try:
        found = ask(computing, "/v1/chat/completions", CHAT | {"explain": True})
    finally:
        desk.explaining._waiting = 0
    assert found.status == 429
    assert found.headers["retry-after"] == str(MOST_EXPLAINED)


def test_traces_go_with_their_jobs(computing: Running) -> None:
    computing.post("/v1/chat/completions", CHAT | {"explain": True})
    assert len(computing.service.steps._traces) <= 1  # the last connection may still hold its own
