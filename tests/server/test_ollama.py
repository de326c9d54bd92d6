"""/api/*: Ollama's protocol, in the shapes that its Python client reads (ollama 0.6, docs/api.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spola.server.errors import ApiError
from spola.server.ollama_messages import chat_messages
from spola.server.ollama_reply import OllamaReply
from spola.server.options import ServerOptions
from spola.server.translate import End
from support.adapters import tiny_factors, write_adapter
from support.running import TEXT, Running
from support.serving import ask, serving
from support.tiny import Tiny

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": HI}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
COUNTS = {"prompt_eval_count", "eval_count"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "timing": {"total_s": 1.5, "decode_s": 0.5}}


def lines(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.data.endswith(b"\n")
    return [json.loads(line) for line in answer.data.splitlines()]


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", PROMPT)])
def test_a_stream_and_a_whole_answer_say_the_same(running: Running, path: str, body: dict[str, Any]) -> None:
    def said(row: dict[str, Any]) -> str:
        return row["message"]["content"] if path == "/api/chat" else row["response"]

    whole = ask(running, path, {**body, "stream": False}).body
    assert said(whole) == TEXT
    streamed = lines(ask(running, path, body))  # a stream is what Ollama gives unless told otherwise
    assert "".join(map(said, streamed)) == TEXT
    assert [row["done"] for row in streamed] == [False] * (len(streamed) - 1) + [True]
    last = streamed[-1]
    assert (
        set(whole)
        == set(last)
        == {"model", "created_at", "done", "done_reason"}
        | DURATIONS
        | COUNTS
        | {"message" if path == "/api/chat" else "response"}
    )
    for row in (whole, last):
        assert (row["model"], row["done_reason"]) == ("tiny", "stop")
        assert all(isinstance(row[name], int) for name in DURATIONS | COUNTS)
        assert row["total_duration"] >= row["eval_duration"] > 0
    assert whole["eval_count"] == last["eval_count"]
    if path == "/api/chat":
        assert whole["message"]["role"] == "assistant"


def test_options_are_obeyed(running: Running) -> None:
    def generated(**options: Any) -> dict[str, Any]:
        body: dict[str, Any] = ask(
            running, "/api/generate", {**PROMPT, "stream": False, "options": options}
        ).body
        return body

    assert (generated(num_predict=3)["eval_count"], generated(num_predict=3)["done_reason"]) == (3, "length")
    assert generated(stop=["sat"])["response"] == TEXT[: TEXT.index("sat")]
    assert generated(num_predict=-1)["response"] == TEXT
    n = generated()["prompt_eval_count"]
    assert generated(num_ctx=n + 4)["eval_count"] == 4
    refused = ask(running, "/api/generate", {**PROMPT, "options": {"num_ctx": n}})
    assert (refused.status, "options.num_ctx" in refused.body["error"]) == (400, True)


def test_raw_prompts_have_no_template_and_system_is_a_message(running: Running) -> None:
    def count(**more: Any) -> int:
        body = ask(running, "/api/generate", {**PROMPT, "stream": False, **more}).body
        n: int = body["prompt_eval_count"]
        return n

    completion = ask(running, "/v1/completions", {"prompt": "hi", "max_tokens": 1}).body
    assert count(raw=True) == completion["usage"]["prompt_tokens"]
    messages = [{"role": "system", "content": "be brief"}, *HI]
    chat = ask(running, "/v1/chat/completions", {"messages": messages, "max_tokens": 1}).body
    assert count(system="be brief") == chat["usage"]["prompt_tokens"]


def test_formats_and_logprobs(running: Running) -> None:
    row = ask(running, "/api/chat", {**CHAT, "stream": False, "format": "json"}).body
    assert row["message"]["content"].lstrip().startswith("{")  # the parrot never closes it
    row = ask(running, "/api/chat", {**CHAT, "stream": False, "format": {"enum": ["yes", "no"]}}).body
    assert json.loads(row["message"]["content"]) in ("yes", "no")
    row = ask(running, "/api/chat", {**CHAT, "stream": False, "logprobs": True, "top_logprobs": 2}).body
    assert (
        "".join(bytes(one["bytes"]).decode("latin-1") for one in row["logprobs"]).encode("latin-1").decode()
        == TEXT
    )
    assert all(len(one["top_logprobs"]) == 2 for one in row["logprobs"])
    streamed = lines(ask(running, "/api/chat", {**CHAT, "logprobs": True}))
    assert [one["token"] for line in streamed for one in line.get("logprobs", ())] == [
        one["token"] for one in row["logprobs"]
    ]


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("/api/chat", {"options": {"typical_p": 0.5}}, "options.typical_p"),
        ("/api/chat", {"options": {"mirostat": 1}}, "options.mirostat"),
        ("/api/chat", {"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ("/api/chat", {"options": {"num_ctx": 100000}}, "options.num_ctx"),
        ("/api/chat", {"options": {"num_predict": 0}}, "options.num_predict"),
        ("/api/chat", {"options": {"num_predict": "a"}}, "options.num_predict"),
        ("/api/chat", {"options": {"temperature": -1}}, "options.temperature"),
        ("/api/chat", {"options": {"presence_penalty": 3}}, "options.presence_penalty"),
        ("/api/chat", {"options": {"stop": [""]}}, "options.stop"),
        ("/api/chat", {"options": 5}, "options"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"format": {"type": "nope"}}, "format"),
        ("/api/chat", {"think": "much"}, "think"),
        ("/api/chat", {"top_logprobs": 2}, "top_logprobs"),
        ("/api/chat", {"messages": [{"role": "user"}, 5]}, "messages[1].role"),
        ("/api/chat", {"messages": [{"role": "user", "images": ["aaaa"]}]}, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_name"),
        ("/api/chat", {"tools": [{"function": {}}]}, "tools"),
        ("/api/generate", {"images": ["aaaa"]}, "images"),
        ("/api/generate", {"template": "x"}, "template"),
        ("/api/generate", {"context": [1]}, "context"),
        ("/api/generate", {"suffix": "x"}, "suffix"),
        ("/api/generate", {"raw": True, "system": "x"}, "system"),
        ("/api/generate", {"raw": True, "logprobs": True}, "logprobs"),
        ("/api/generate", {"prompt": "", "keep_alive": 0}, "keep_alive"),
        ("/api/embed", {"dimensions": 0, "input": "a"}, "dimensions"),
        ("/api/embed", {"input": ["a", ""]}, "input"),
        ("/api/embed", {"input": "the rain " * 200, "truncate": False}, "input"),
        ("/api/show", {"verbose": True}, "verbose"),
    ],
)
def test_what_is_not_obeyed_is_refused_by_name(
    running: Running, path: str, more: dict[str, Any], said: str
) -> None:
    base = {"/api/chat": CHAT, "/api/generate": PROMPT}.get(path, {"model": "tiny"})
    answer = ask(running, path, {**base, **more})
    assert answer.status == 400, answer.data
    assert list(answer.body) == ["error"]
    assert said in answer.body["error"]


def test_settings_of_the_server_and_unknown_fields_are_told(running: Running) -> None:
    body = {**CHAT, "keep_alive": "5m", "mood": 1, "options": {"num_thread": 4, "mirostat_tau": 5, "x": 1}}
    answer = ask(running, "/api/chat", body)
    assert answer.headers["x-spola-unknown-fields"] == (
        "options.num_thread, options.x, keep_alive, mood".replace(
            "options.num_thread", "options.mirostat_tau, options.num_thread"
        )
    )
    assert "x-spola-unknown-fields" not in ask(running, "/api/chat", {**CHAT, "format": ""}).headers


def test_nothing_to_answer_loads_the_model(running: Running) -> None:
    row = ask(running, "/api/chat", {"model": "tiny", "messages": []}).body
    assert (row["done"], row["done_reason"], row["message"]["content"]) == (True, "load", "")
    assert ask(running, "/api/generate", {"model": "tiny"}).body["response"] == ""


def test_models_by_name_and_tag(running: Running) -> None:
    listed = ask(running, "/api/tags").body["models"]
    assert [(row["name"], row["model"]) for row in listed] == [("tiny", "tiny")]
    assert listed[0]["details"]["format"] == "gguf"
    assert listed[0]["size"] > 0
    assert len(listed[0]["digest"]) == 64
    assert ask(running, "/api/ps").body["models"][0]["context_length"] == 256
    assert "version" in ask(running, "/api/version").body
    shown = ask(running, "/api/show", {"model": "tiny:latest"})
    assert shown.body["capabilities"] == ["completion", "embedding", "tools"]
    assert shown.body["model_info"]["general.parameter_count"] > 0
    path = running.service.config.path.rpartition("/")[0].encode()
    for data in (shown.data, ask(running, "/api/tags").data, ask(running, "/api/ps").data):
        assert path not in data
    assert (
        ask(running, "/api/chat", {**CHAT, "model": "tiny:latest", "stream": False}).body["model"] == "tiny"
    )
    for name in ("x", "tiny:7b", "../../etc/passwd"):
        answer = ask(running, "/api/show", {"model": name})
        assert (answer.status, "'tiny'" in answer.body["error"]) == (404, True)


def test_embeddings_are_those_of_the_other_route(running: Running) -> None:
    texts = ["the rain", "a cat"]
    row = ask(running, "/api/embed", {"model": "tiny", "input": texts, "dimensions": 8}).body
    others = ask(running, "/v1/embeddings", {"input": texts, "dimensions": 8}).body
    assert row["embeddings"] == [one["embedding"] for one in others["data"]]
    assert row["prompt_eval_count"] == others["usage"]["prompt_tokens"]
    long = ask(running, "/api/embed", {"model": "tiny", "input": "the rain " * 3000}).body
    assert long["prompt_eval_count"] == 255
    one = ask(running, "/api/embed", {"model": "tiny", "input": "a b c d e", "options": {"num_ctx": 2}}).body
    assert one["prompt_eval_count"] == 2


def test_calls_are_told_whole_and_results_find_their_call() -> None:
    messages = chat_messages(
        [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"function": {"name": "get", "arguments": {"a": 1}}},
                    {"function": {"name": "put", "arguments": {}}},
                ],
            },
            {"role": "tool", "tool_name": "put", "content": "2"},
            {"role": "tool", "content": "1"},
        ]
    )
    get, put = messages[1]["tool_calls"]
    assert get["function"] == {"name": "get", "arguments": '{"a":1}'}
    assert [message["tool_call_id"] for message in messages[2:]] == [put["id"], get["id"]]

    reply = OllamaReply("m", chat=True)
    pieces = [
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "get", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]
    data = b"".join(map(reply.piece, pieces)) + reply.end(End("tool_calls", None, USAGE, ()))
    told = [json.loads(line) for line in data.splitlines()]
    assert [row["message"].get("thinking") for row in told] == ["hm", None, None]
    assert told[1]["message"]["tool_calls"] == [
        {"id": "c", "function": {"name": "get", "arguments": {"a": 1}}}
    ]
    assert (told[2]["done_reason"], told[2]["total_duration"]) == ("stop", 1_500_000_000)
    assert reply.whole()["message"]["tool_calls"] == told[1]["message"]["tool_calls"]
    assert json.loads(reply.failed(ApiError(503, "gone"))) == {"error": "gone"}
    assert json.loads(reply.ping())["done"] is False


def test_strict_refuses_unknown_fields_and_keys_are_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path, server=ServerOptions(strict=True)) as running:
        for body, said in (
            ({**CHAT, "mesages": []}, "messages"),
            ({**CHAT, "options": {"top_q": 1}}, "top_"),
        ):
            answer = ask(running, "/api/chat", body)
            assert (answer.status, said in answer.body["error"]) == (400, True)
        assert ask(running, "/api/chat", {**CHAT, "options": {"num_thread": 4}}).status == 200


def test_adapters_are_models_too(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", tiny_factors(Tiny(), 0))
    lora = (("a", str(tmp_path / "a")),)
    with serving(tmp_path, backend="native", lora=lora, kv_memory=8 << 20) as running:
        listed = ask(running, "/api/tags").body["models"]
        assert [(row["name"], row["details"]["parent_model"]) for row in listed] == [
            ("tiny", ""),
            ("a", "tiny"),
        ]
        texts = set()
        for name in ("tiny", "a:latest"):
            body = {"model": name, "prompt": "the rain", "raw": True, "stream": False}
            row = ask(running, "/api/generate", {**body, "options": {"num_predict": 12}}).body
            assert row["model"] == name.removesuffix(":latest")
            texts.add(row["response"])
            inputs = {"inputs": "the rain", "parameters": {"max_new_tokens": 12}}
            if name != "tiny":
                inputs["parameters"]["adapter_id"] = "a"  # type: ignore[index]
            assert ask(running, "/generate", inputs).body["generated_text"] == row["response"]
        assert len(texts) == 2
