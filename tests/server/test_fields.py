"""Fields of the two routes: what each does, and that unknown ones are told or refused."""

from __future__ import annotations

import urllib.request
from typing import Any

import msgspec
import pytest

from spola.server.asks import Terms, chat_ask, completion_ask
from spola.server.errors import ApiError
from spola.server.fields import NO_EFFECT, REFUSED, ChatRequest, CompletionRequest
from support.running import TEXT, Running
from support.waiting import PATIENCE_S

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"prompt": "one two", "max_tokens": 200}


def headers(running: Running, path: str, body: dict[str, Any]) -> dict[str, str]:
    data = msgspec.json.encode(body)
    with urllib.request.urlopen(running.url + path, data=data, timeout=PATIENCE_S) as response:
        response.read()
        return dict(response.headers)


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_are_told_in_the_head(running: Running, stream: bool) -> None:
    body = {**CHAT, "no_such": 1, "temprature": 0, "user": "me", "metadata": {"a": 1}, "stream": stream}
    body["messages"] = [{"role": "user", "content": "hi", "mood": "good\r\nX: y"}]
    assert headers(running, "/v1/chat/completions", body)["x-spola-unknown-fields"] == (
        "messages[0].mood, no_such, temprature"
    )
    assert "x-spola-unknown-fields" not in headers(running, "/v1/chat/completions", {**CHAT, "n": 1})
    odd = {**COMPLETION, "a\r\nSet-Cookie: b": 1}
    assert headers(running, "/v1/completions", odd)["x-spola-unknown-fields"] == "a??Set-Cookie??b"


def test_strict_refuses_them_with_the_nearest_name(running: Running) -> None:
    terms = Terms(model="tiny", strict=True)
    for body, param, near in (
        ({**CHAT, "temprature": 0}, "temprature", "temperature"),
        (
            {**CHAT, "stream": True, "stream_options": {"include_usag": True}},
            "stream_options.include_usag",
            "include_usage",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_call": 1}]},
            "messages[0].tool_call",
            "tool_calls",
        ),
    ):
        with pytest.raises(ApiError) as caught:
            chat_ask(running.service, terms, body)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert near in caught.value.message
    assert chat_ask(running.service, terms, {**CHAT, "store": False, "user": "a", "no": None}).unknown == ()


def test_every_field_is_somewhere_and_only_once() -> None:
    for kind in (ChatRequest, CompletionRequest):
        assert not set(kind.__struct_fields__) & (set(NO_EFFECT) | set(REFUSED))
    assert not set(NO_EFFECT) & set(REFUSED)


def test_values_that_ask_for_nothing_are_fine(running: Running) -> None:
    neutral = {name: values[0] for name, (_, values) in REFUSED.items() if values}
    zero = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "stop": [], "min_p": 0}
    ask = chat_ask(running.service, Terms(model="tiny", strict=True), {**CHAT, **neutral, **zero})
    assert ask.unknown == ()
    status, answer = running.post("/v1/completions", {**COMPLETION, **zero, "best_of": 1, "suffix": ""})
    assert (status, answer["choices"][0]["text"]) == (200, TEXT)


def test_prompts_times_n_in_order(running: Running) -> None:
    body = {**COMPLETION, "prompt": ["A", "B c", [7, 8, 9]], "n": 2}
    status, answer = running.post("/v1/completions", body)
    assert status == 200, answer
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert {choice["text"] for choice in answer["choices"]} == {TEXT}
    service = running.service
    assert answer["usage"]["prompt_tokens"] == sum(
        len(service.prompt_ids(prompt)) for prompt in ("A", "B c", [7, 8, 9])
    )
    print(answer)
    single = running.post("/v1/completions", {**COMPLETION, "prompt": [[1, 2], [3]]})[1]
    assert [choice["index"] for choice in single["choices"]] == [0, 1]
    assert (
        running.post("/v1/completions", {**COMPLETION, "prompt": [1, 2, 3]})[1]["usage"]["prompt_tokens"] == 3
    )
    chunks = running.chunks("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    texts = dict.fromkeys(range(6), "")
    ends: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            assert choice["index"] not in ends
            ends[choice["index"]] = choice["finish_reason"]
    assert texts == dict.fromkeys(range(6), TEXT)
    assert ends == dict.fromkeys(range(6), "stop")
    assert [chunk["choices"] for chunk in chunks if not chunk["choices"]] == [[]]
    assert chunks[-1]["usage"]["total_tokens"] == answer["usage"]["total_tokens"]


def test_n_choices_of_a_chat(running: Running) -> None:
    status, answer = running.post("/v1/chat/completions", {**CHAT, "n": 3})
    assert (status, [c["message"]["content"] for c in answer["choices"]]) == (200, [TEXT] * 3)
    chunks = running.chunks("/v1/chat/completions", {**CHAT, "n": 3})
    roles = [c["index"] for chunk in chunks for c in chunk["choices"] if c["delta"].get("role")]
    assert sorted(roles) == [0, 1, 2]


def test_echo(running: Running) -> None:
    for prompt in ("one  two é", " ", "\n\n\t x", [70, 71, 72], "a<|im_end|>b"):
        body = {**COMPLETION, "prompt": prompt, "echo": True}
        shown = prompt if isinstance(prompt, str) else running.service.tokenizer.decode(prompt)
        status, answer = running.post("/v1/completions", body)
        assert (status, answer["choices"][0]["text"]) == (200, shown + TEXT)
        chunks = running.chunks("/v1/completions", body)
        assert "".join(c["text"] for chunk in chunks for c in chunk["choices"]) == shown + TEXT
        status, answer = running.post("/v1/completions", {**body, "max_tokens": 0})
        choice = answer["choices"][0]
        assert (status, choice["text"], choice["finish_reason"]) == (200, shown, "length")
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]


def legacy(choices: list[dict[str, Any]]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            out.setdefault(name, []).extend(values)
    return out


@pytest.mark.parametrize("top", [0, 1, 5])
@pytest.mark.parametrize("more", [{}, {"echo": True}, {"stop": "mat 歪"}, {"stop": "😸"}, {"stop": "ca"}])
def test_completion_logprobs(running: Running, top: int, more: dict[str, Any]) -> None:
    body = {**COMPLETION, "logprobs": top, **more}
    status, answer = running.post("/v1/completions", body)
    assert status == 200
    (choice,) = answer["choices"]
    found = choice["logprobs"]
    assert len({len(values) for values in found.values()}) == 1
    text = b"".join(_data(token) for token in found["tokens"])
    assert text.decode() == choice["text"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)
    first = found["token_logprobs"][0] is None
    assert first == bool(more.get("echo"))
    assert all(value <= 0 for value in found["token_logprobs"][first:])
    for table in found["top_logprobs"][first:]:
        assert max(1, top) <= len(table) <= top + 1
    streamed = [c for chunk in running.chunks("/v1/completions", body) for c in chunk["choices"]]
    assert legacy(streamed) == found


def _data(token: str) -> bytes:
    if not token.startswith("bytes:"):
        return token.encode()
    return bytes(int(part, 16) for part in token[6:].split("\\x")[1:])


@pytest.mark.parametrize("stop", [None, "mat 歪", "😸", "ca", "zzz"])
@pytest.mark.parametrize("top", [None, 0, 5, 20])
def test_chat_logprobs(running: Running, top: int | None, stop: str | None) -> None:
    body = {**CHAT, "logprobs": True, "stop": stop, "top_logprobs": top}
    status, answer = running.post("/v1/chat/completions", body)
    assert status == 200
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == choice["message"]["content"]
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == (top or 0)
        values = [alternative["logprob"] for alternative in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
    chunks = running.chunks("/v1/chat/completions", body)
    streamed = [
        entry
        for chunk in chunks
        for c in chunk["choices"]
        for entry in (c["logprobs"] or {}).get("content", ())
    ]
    assert streamed == entries
    assert running.post("/v1/chat/completions", CHAT)[1]["choices"][0]["logprobs"] is None


def test_ids_on_request(running: Running) -> None:
    ids = running.parrot.answer
    _, answer = running.post("/v1/completions", {**COMPLETION, "return_token_ids": True})
    (choice,) = answer["choices"]
    assert choice["token_ids"][:-1] == list(ids)
    assert choice["prompt_token_ids"] == running.service.prompt_ids("one two")
    _, answer = running.post("/v1/chat/completions", {**CHAT, "return_token_ids": True})
    assert answer["choices"][0]["token_ids"][:-1] == list(ids)
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        chunks = running.chunks(path, {**body, "return_token_ids": True})
        got = [id for chunk in chunks for c in chunk["choices"] for id in c.get("token_ids", ())]
        assert got[:-1] == list(ids)


def test_prompt_logprobs(running: Running) -> None:
    status, answer = running.post("/v1/completions", {**COMPLETION, "prompt_logprobs": 2})
    rows = answer["choices"][0]["prompt_logprobs"]
    ids = running.service.prompt_ids("one two")
    assert (status, rows[0], len(rows)) == (200, None, len(ids))
    for token, row in zip(ids[1:], rows[1:], strict=True):
        assert set(row[str(token)]) == {"logprob", "rank", "decoded_token"}
    status, answer = running.post("/v1/chat/completions", {**CHAT, "prompt_logprobs": 0})
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]


def test_best_of_takes_the_likeliest(running: Running) -> None:
    status, answer = running.post("/v1/completions", {**COMPLETION, "best_of": 3, "n": 2})
    assert (status, len(answer["choices"])) == (200, 2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 3 * (len(running.parrot.answer) + 1)


def test_settings_reach_the_engine(running: Running) -> None:
    body = {
        **CHAT,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.3,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "logit_bias": {"5": 1.5},
        "bad_words": ["dog"],
        "allowed_token_ids": [1, 2],
        "min_tokens": 3,
        "stop_token_ids": [9],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs_mode": "processed",
        "priority": -3,
        "cache_salt": "s",
        "timeout": 2.5,
    }
    ask = chat_ask(running.service, Terms(model="tiny", strict=True, key="me"), body)
    params = ask.params
    assert (params.top_k, params.min_p, params.repetition_penalty) == (5, 0.1, 1.3)
    assert (params.presence_penalty, params.frequency_penalty) == (1, -1)
    assert (params.logit_bias, params.bad_words, params.allowed_token_ids) == ({5: 1.5}, ("dog",), (1, 2))
    assert (params.min_tokens, params.stop_token_ids, params.logprobs_mode) == (3, (9,), "processed")
    assert (params.include_stop_str_in_output, params.skip_special_tokens) == (True, False)
    assert ask.how.pop("visible") == frozenset()
    assert ask.how == {
        "priority": -3,
        "cache_salt": "s",
        "adapter": None,
        "timeout_s": 2.5,
        "key": "me",
        "grammar": None,
        "follow": False,
    }
    plain = completion_ask(running.service, Terms(model="tiny"), {"prompt": "x", "add_special_tokens": False})
    assert plain.params.max_tokens == 16


def test_a_timeout_ends_in_an_error(running: Running) -> None:
    running.parrot.delay = 0.02
    status, answer = running.post("/v1/chat/completions", {**CHAT, "timeout": 0.05, "ignore_eos": True})
    assert (status, answer["error"]["type"]) == (503, "server_error")
    assert "deadline" in answer["error"]["message"]


def test_usage_in_every_chunk(running: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = running.chunks("/v1/chat/completions", {**CHAT, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == len(running.parrot.answer) + 1
