"""The OpenAI client and plain HTTP against a real server: shapes, streams, stops, disconnects."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.parse
import urllib.request
from typing import Any

import openai
import pytest

from spola.text.chat import ChatTemplate
from support.running import TEXT, Running
from support.waiting import PATIENCE_S, until

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage without its times, which are never the same."""
    assert set(usage["timing"]) >= {"queue_s", "prefill_s", "decode_s", "total_s", "preemptions", "accepted"}
    return {name: value for name, value in usage.items() if name != "timing"}


def test_models(running: Running, client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"
    assert running.get("/v1/models/..%2f..%2fetc%2fpasswd")[0] == 404


def test_chat(running: Running, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=CHAT["messages"])
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", TEXT)
    assert choice.finish_reason == "stop"
    tokenizer = running.service.tokenizer
    assert answer.usage.prompt_tokens == len(running.service.chat_ids(CHAT["messages"]))
    assert answer.usage.completion_tokens == len(tokenizer.encode(TEXT)) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.system_fingerprint.startswith("null-")


def test_a_streamed_chat_equals_the_whole_one(running: Running, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT["messages"], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens > 0) == ([], True)
    whole = client.chat.completions.create(model="tiny", messages=CHAT["messages"])
    assert counts(chunks[-1].usage.model_dump()) == counts(whole.usage.model_dump())
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]


def test_completions_of_text_and_of_ids(running: Running, client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="one two", max_tokens=200)
    assert (answer.object, answer.choices[0].text) == ("text_completion", TEXT)
    ids = running.service.tokenizer.encode("one two")
    again = client.completions.create(model="tiny", prompt=ids, max_tokens=200)
    assert again.usage.total_tokens == answer.usage.total_tokens
    # The text from before, its answer included, is in the cache; one prompt token is computed.
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    assert client.completions.create(model="tiny", prompt=["one two"]).usage.completion_tokens == 16
    streamed = client.completions.create(model="tiny", prompt="one two", max_tokens=200, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == TEXT


@pytest.mark.parametrize("stop", ["mat", ["zzz", " 😸"], ["at on th", "at on the m"], "歪"])
def test_stops_are_cut_the_same_streamed_and_not(running: Running, stop: str | list[str]) -> None:
    first = min(TEXT.index(s) for s in ([stop] if isinstance(stop, str) else stop) if s in TEXT)
    for path, body in (
        ("/v1/completions", {"prompt": "a", "max_tokens": 200}),
        ("/v1/chat/completions", CHAT),
    ):
        status, whole = running.post(path, {**body, "stop": stop})
        assert status == 200
        choice = whole["choices"][0]
        text = choice.get("text", choice.get("message", {}).get("content"))
        assert (text, choice["finish_reason"]) == (TEXT[:first], "stop")
        chunks = running.chunks(path, {**body, "stop": stop, "stream_options": {"include_usage": True}})
        pieces = [
            c.get("text", c.get("delta", {}).get("content")) or "" for k in chunks for c in k["choices"]
        ]
        assert "".join(pieces) == text
        assert counts(chunks[-1]["usage"]) == counts(whole["usage"])


def test_length_and_ignore_eos(running: Running) -> None:
    body = {**CHAT, "max_tokens": 60, "ignore_eos": True}
    status, answer = running.post("/v1/chat/completions", body)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 60)
    assert answer["choices"][0]["finish_reason"] == "length"
    newer = {**CHAT, "max_completion_tokens": 3}
    assert running.post("/v1/chat/completions", newer)[1]["usage"]["completion_tokens"] == 3
    # Without a limit, the answer ends at the end of the window and says so.
    status, answer = running.post("/v1/chat/completions", {**CHAT, "ignore_eos": True})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 256
    status, answer = running.post("/v1/completions", {"prompt": "a", "max_tokens": 10**6, "ignore_eos": True})
    assert answer["usage"]["total_tokens"] == 256


def test_neutral_nulls_and_text_parts(running: Running) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    body = {
        "messages": [{"role": "user", "content": parts}],
        "model": "tiny",
        "stop": None,
        "stream": None,
        "stream_options": None,
        "logprobs": None,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": -1,
    }
    status, answer = running.post("/v1/chat/completions", body)
    assert status == 200
    plain = running.post("/v1/chat/completions", CHAT)[1]
    assert counts(answer["usage"]) == counts(plain["usage"])


def test_every_stream_line_is_json_and_the_end_comes_once(running: Running) -> None:
    for options in (None, {}, {"include_usage": False}):
        chunks = running.chunks("/v1/chat/completions", {**CHAT, "stream_options": options})
        assert all(chunk["choices"] for chunk in chunks)
        assert all("usage" not in chunk for chunk in chunks)
        assert sum(c["choices"][0]["finish_reason"] is not None for c in chunks) == 1


@pytest.mark.parametrize("said", ["", "x"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_of_nothing_or_little_has_the_same_shape(running: Running, said: str, n: int) -> None:
    """R21: an answer of no visible character, or of one token; several choices at once."""
    answer, running.parrot.answer = (
        running.parrot.answer,
        running.service.tokenizer.encode(said, add_bos=False),
    )
    try:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a"})):
            options = {"n": n, "stream_options": {"include_usage": True}}
            *chunks, last = running.chunks(path, {**body, **options})
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            for index in range(n):
                mine = [choice for choice in choices if choice["index"] == index]
                texts = [c.get("text", c.get("delta", {}).get("content")) or "" for c in mine]
                assert "".join(texts) == said
                assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
                if "messages" in body:
                    assert mine[0]["delta"]["role"] == "assistant"
            assert (last["choices"], last["usage"]["completion_tokens"]) == ([], n * (len(said) + 1))
            assert all(chunk.get("usage") is None for chunk in chunks)
            assert len({(chunk["id"], chunk["created"]) for chunk in (*chunks, last)}) == 1
    finally:
        running.parrot.answer = answer


def test_a_step_that_takes_long_holds_up_no_other_route(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R23: while the engine computes, as in a long prompt, everything that needs no engine is answered."""
    gate, begun = threading.Event(), threading.Event()
    execute = running.parrot.execute

    def waits(step: Any) -> Any:
        begun.set()
        assert gate.wait(PATIENCE_S)
        return execute(step)

    monkeypatch.setattr(running.parrot, "execute", waits)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(running.post("/v1/completions", {"prompt": "a"})))
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        for path in ("/health", "/v1/models", "/version", "/openapi.json"):
            assert running.get(path)[0] == 200
        with urllib.request.urlopen(running.url + "/metrics", timeout=PATIENCE_S) as response:
            assert b"num_requests_running" in response.read()
        assert running.post("/tokenize", {"prompt": "a"})[0] == 200
        # The head of a stream comes before its first token.
        body = json.dumps({**CHAT, "stream": True}).encode()
        with urllib.request.urlopen(running.url + "/v1/chat/completions", body, timeout=PATIENCE_S) as stream:
            assert stream.status == 200
            assert not got
            gate.set()
            assert b"[DONE]" in stream.read()
    finally:
        gate.set()
        thread.join(PATIENCE_S)
    assert got[0][0] == 200


def wait_idle(running: Running) -> None:
    until(lambda: not running.service.loop._engine.has_work and not running.state.desk.busy)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(running: Running, stream: bool) -> None:
    running.parrot.delay = 0.01
    before = running.service.loop._engine.scheduler.stats.aborted
    connection = http.client.HTTPConnection(urllib.parse.urlparse(running.url).netloc, timeout=PATIENCE_S)
    body = {**CHAT, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    if stream:
        connection.getresponse().read(20)
    else:
        until(lambda: running.service.loop._engine.has_work)
    connection.close()
    wait_idle(running)
    assert running.service.loop._engine.scheduler.stats.aborted == before + 1


def test_many_at_once_get_their_own_answers(running: Running) -> None:
    found: dict[int, tuple[int, str]] = {}

    def ask(index: int) -> None:
        body = {"prompt": f"number {index}", "max_tokens": 200, "stop": ["mat"] if index % 2 else None}
        if index % 3:
            text = "".join(k["choices"][0]["text"] for k in running.chunks("/v1/completions", body))
            found[index] = (200, text)
        else:
            status, answer = running.post("/v1/completions", body)
            found[index] = (status, answer["choices"][0]["text"])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cut = TEXT[: TEXT.index("mat")]
    assert found == {i: (200, cut if i % 2 else TEXT) for i in range(40)}


def test_a_failure_before_and_within_a_stream(running: Running, client: openai.OpenAI) -> None:
    running.parrot.broken = "no luck"
    status, body = running.post("/v1/chat/completions", CHAT)
    assert (status, body["error"]["type"]) == (500, "server_error")
    running.parrot.broken = None
    running.parrot.delay = 0.02
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT["messages"], stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    running.parrot.broken = "no luck"
    with pytest.raises(openai.APIError, match="no luck"):
        list(stream)


def test_a_slow_reader_does_not_slow_others(running: Running) -> None:
    connection = http.client.HTTPConnection(urllib.parse.urlparse(running.url).netloc, timeout=PATIENCE_S)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({**CHAT, "ignore_eos": True, "stream": True})
    )
    response = connection.getresponse()
    assert running.post("/v1/completions", {"prompt": "a"})[0] == 200
    wait = response.read()
    assert wait.endswith(b"data: [DONE]\n\n")
    connection.close()


def test_silence_is_filled_with_pings(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spola.server.generate.PING_AFTER_S", 0.02)
    running.parrot.delay = 0.1
    lines = running.lines("/v1/chat/completions", {**CHAT, "max_tokens": 3, "stream": True})
    assert lines.count(": ping") >= 3
    assert lines[-1] == "data: [DONE]"


def test_a_model_without_a_template_completes_but_does_not_chat(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service, "template", None)
    for stream in (False, True):
        status, body = running.post("/v1/chat/completions", {**CHAT, "stream": stream})
        assert (status, body["error"]["code"]) == (400, "no_chat_template")
        assert "/v1/completions" in body["error"]["message"]
    assert running.post("/v1/completions", {"prompt": "a"})[0] == 200


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('no system messages') }}", "no system messages"),
        ("{% for i in range(10**9) %}x{% endfor %}", "template"),
        ("{{ messages.__class__.__mro__ }}", "template"),
        ("{{ 'x' * 10**9 }}", "template"),
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_a_400(
    running: Running, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.setattr(running.service, "template", ChatTemplate(source))
    for stream in (False, True):
        status, body = running.post("/v1/chat/completions", {**CHAT, "stream": stream})
        assert (status, body["error"]["param"]) == (400, "messages")
        assert said in body["error"]["message"]


def test_states_that_are_not_ready(running: Running) -> None:
    desk, running.state.desk = running.state.desk, None
    try:
        for status, body in (running.get("/health"), running.post("/v1/chat/completions", CHAT)):
            assert (status, body["error"]["message"]) == (503, "the model is loading")
    finally:
        running.state.desk = desk
    running.state.leaving = True
    try:
        assert running.get("/health")[0] == 503
        assert running.post("/v1/completions", {"prompt": "a"})[0] == 503
    finally:
        running.state.leaving = False
