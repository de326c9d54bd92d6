"""Wrong requests: a clean 4xx in OpenAI's shape that names the field; the server goes on."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

from support.running import Running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**CHAT, "n": 0}, "n"),
        ({**CHAT, "n": -1}, "n"),
        ({**CHAT, "n": 129}, "n"),
        ({**CHAT, "logit_bias": {"999999": 5}}, "logit_bias"),
        ({**CHAT, "logit_bias": {"-1": 5}}, "logit_bias"),
        ({**CHAT, "logit_bias": {"abc": 5}}, "logit_bias"),
        ({**CHAT, "logit_bias": {"1.5": 5}}, "logit_bias"),
        ({**CHAT, "logit_bias": {"5": 1000}}, "logit_bias[5]"),
        ({**CHAT, "stop_token_ids": [999999]}, "stop_token_ids"),
        # R16: a row of the table that is no token, beyond the tokenizer's last id.
        ({**CHAT, "logit_bias": {"280": 100}}, "logit_bias"),
        ({**CHAT, "stop_token_ids": [280]}, "stop_token_ids"),
        ({**CHAT, "allowed_token_ids": [280, 5]}, "allowed_token_ids"),
        ({**CHAT, "presence_penalty": 3}, "presence_penalty"),
        ({**CHAT, "frequency_penalty": -3}, "frequency_penalty"),
        ({**CHAT, "repetition_penalty": 0}, "repetition_penalty"),
        ({**CHAT, "repetition_penalty": 1e-320}, "repetition_penalty"),
        ({**CHAT, "repetition_penalty": 1e308}, "repetition_penalty"),
        ({**CHAT, "min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({**CHAT, "logprobs": 1}, "logprobs"),
        ({**CHAT, "top_logprobs": 1}, "top_logprobs"),
        ({**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({**CHAT, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({**CHAT, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({**CHAT, "timeout": 0}, "timeout"),
        ({**CHAT, "priority": 2**40}, "priority"),
        ({**CHAT, "functions": [{"name": "f"}]}, "functions"),
        ({**CHAT, "modalities": ["audio"]}, "modalities"),
        ({**CHAT, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({**CHAT, "temperature": -1}, "temperature"),
        ({**CHAT, "temperature": "hot"}, "temperature"),
        ({**CHAT, "temperature": True}, "temperature"),
        ({**CHAT, "top_p": 0}, "top_p"),
        ({**CHAT, "top_p": 1.1}, "top_p"),
        ({**CHAT, "seed": 1.5}, "seed"),
        ({**CHAT, "seed": "7"}, "seed"),
        ({**CHAT, "seed": 2**70}, "seed"),
        ({**CHAT, "max_tokens": 0}, "max_tokens"),
        ({**CHAT, "max_tokens": -1}, "max_tokens"),
        ({**CHAT, "max_tokens": 2**40}, "max_tokens"),
        ({**CHAT, "max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({**CHAT, "stop": ""}, "stop"),
        ({**CHAT, "stop": [""]}, "stop"),
        ({**CHAT, "stop": [1]}, "stop[0]"),
        ({**CHAT, "stop": 5}, "stop"),
        ({**CHAT, "stop": ["x"] * 17}, "stop"),
        ({**CHAT, "stream": "yes"}, "stream"),
        (
            {**CHAT, "stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage",
        ),
        ({**CHAT, "stream_options": {"include_usage": True}}, "stream_options"),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (message(role="x"), "messages[0].role"),
        (message(content=None), "messages[0].content"),
        (message(content=5), "messages[0].content"),
        (message(content=[{"type": "image_url", "image_url": {}}]), None),
        ({**CHAT, "model": "../../etc/passwd"}, "model"),
        ({**CHAT, "model": 5}, "model"),
    ],
)
def test_chat(running: Running, body: dict[str, Any], param: str | None) -> None:
    check(running, "/v1/chat/completions", body, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [999999]}, "prompt"),
        ({"prompt": [280]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": [2**80]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1], 5]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 128}, "n"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "best_of": 2, "n": 3}, "best_of"),
        ({"prompt": "a", "best_of": 2**63}, "best_of"),
        ({"prompt": "a", "best_of": 3, "stream": True}, "best_of"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ],
)
def test_completions(running: Running, body: dict[str, Any], param: str) -> None:
    check(running, "/v1/completions", body, param)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../../etc/passwd", "a\x00b", "x" * 10**6, "tiny/../tiny", "."]
)
def test_a_name_of_no_model_reaches_nothing(running: Running, name: str) -> None:
    """R39: no file is looked for, and what is answered tells no place of this machine."""
    for path, body in (
        ("/v1/chat/completions", {**CHAT, "model": name}),
        ("/v1/completions", {"prompt": "a", "model": name}),
        ("/v1/embeddings", {"input": "a", "model": name}),
        ("/v1/responses", {"input": "a", "model": name}),
        ("/tokenize", {"prompt": "a", "model": name}),
    ):
        status, answer = running.post(path, body)
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        text = answer["error"]["message"]
        assert len(text) < 500
        assert "tiny" in text
        assert "pytest" not in text  # the model's own folder
    status, answer = running.get("/v1/models/" + urllib.parse.quote(name[:2000], safe=""))
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def check(running: Running, path: str, body: dict[str, Any], param: str | None) -> None:
    for more in ({}, {"stream": True}) if "stream" not in body and "stream_options" not in body else ({},):
        status, answer = running.post(path, {**body, **more})
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        if param == "model" and isinstance(body["model"], str):
            assert (status, error["code"]) == (404, "model_not_found")
        else:
            assert (status, error["type"]) == (400, "invalid_request_error")
        assert "\n" not in error["message"]
        if param is not None:
            assert error["param"] == param
            assert param.split("[")[0].split(".")[-1] in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\\ud83d x"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "a",}',
    ],
)
def test_bodies_that_are_no_requests(running: Running, body: bytes) -> None:
    status, answer = running.post("/v1/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_text_that_looks_odd_but_is_fine(running: Running) -> None:
    for text in (b"\\u0000", b"\\ud8c0\\udc00", b"a\\u0004b\\u0013c", "é".encode()):
        status, _ = running.post("/v1/completions", b'{"max_tokens": 2, "prompt": "' + text + b'"}')
        assert status == 200


def test_a_prompt_too_long_says_both_numbers(running: Running) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": [5] * 300}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "xyz " * 300}]}),
    ):
        for stream in (False, True):
            status, answer = running.post(path, {**body, "stream": stream})
            error = answer["error"]
            assert (status, error["code"]) == (400, "context_length_exceeded")
            assert "256" in error["message"]
            if "prompt" in body:
                assert "300" in error["message"]


def test_a_body_too_large(running: Running) -> None:
    status, answer = running.post("/v1/completions", b'{"prompt": "' + b"a" * (17 << 20) + b'"}')
    assert status == 413
    assert "bytes" in answer["error"]["message"]


def test_routes_that_are_not_there(running: Running) -> None:
    status, answer = running.get("/v1/nothing")
    assert (status, set(answer["error"])) == (404, {"message", "type", "param", "code"})
    status, answer = running.get("/v1/chat/completions")
    assert (status, "GET" in answer["error"]["message"]) == (405, True)


def test_a_bug_is_a_500_without_details(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(prompt: object, **how: object) -> None:
        raise ZeroDivisionError("/home/somebody/secret")

    monkeypatch.setattr(running.service, "prompt_ids", burst)
    status, answer = running.post("/v1/completions", {"prompt": "a"})
    assert (status, answer["error"]["message"]) == (500, "internal error")
    assert "secret" in caplog.text
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "a " * 9000}, "input"),
        ("/v1/embeddings", {"input": [-1]}, "input"),
        ("/v1/embeddings", {"input": "a " * 9000}, "input"),
    ],
)
def test_a_field_is_named_as_the_protocol_calls_it(
    running: Running, path: str, body: dict[str, Any], param: str
) -> None:
    status, answer = running.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert "max_tokens" not in answer["error"]["message"]


def test_messages_call_stops_as_anthropic_does(running: Running) -> None:
    status, answer = running.post("/v1/messages", {**CHAT, "max_tokens": 1, "stop_sequences": [""]})
    assert status == 400
    assert answer["error"]["message"].startswith("stop_sequences ")


def test_an_error_does_not_give_back_a_long_value(running: Running) -> None:
    status, answer = running.post("/v1/chat/completions", {**CHAT, "logprobs_mode": "9" * 5000})
    assert (status, answer["error"]["param"]) == (400, "logprobs_mode")
    assert len(answer["error"]["message"]) < 400


def test_half_of_a_surrogate_pair_is_called_so(running: Running) -> None:
    status, answer = running.post("/v1/completions", {"prompt": "a\ud83d"})
    assert status == 400
    assert "without its other half" in answer["error"]["message"]
