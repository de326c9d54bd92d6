"""/generate, /generate_stream, / and /info in the shapes of TGI's openapi.json and of its Python clients;
/completion and /props in those of llama-server's README.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spola.server.keys import read_keys
from spola.server.options import ServerOptions
from support.running import TEXT, Running
from support.serving import ask, serving

INPUT: dict[str, Any] = {"inputs": "hi", "parameters": {}}


def events(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.data.decode().split("\n\n")
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block.startswith("data: ")]


def tgi(running: Running, path: str = "/generate", **parameters: Any) -> Any:
    return ask(running, path, {**INPUT, "parameters": parameters})


def test_generate_and_its_stream_say_the_same(running: Running) -> None:
    assert tgi(running).body == {"generated_text": TEXT}
    assert tgi(running, "/").body == [{"generated_text": TEXT}]
    details = tgi(running, details=True, top_n_tokens=2).body["details"]
    assert set(details) == {"finish_reason", "generated_tokens", "seed", "prefill", "tokens", "top_tokens"}
    assert (details["finish_reason"], details["prefill"]) == ("eos_token", [])
    assert details["generated_tokens"] == len(details["tokens"]) == len(details["top_tokens"])
    *tokens, ended = details["tokens"]
    assert "".join(token["text"] for token in tokens) == TEXT
    assert ended["special"]
    assert all(len(row) == 2 for row in details["top_tokens"])
    streamed = events(tgi(running, "/generate_stream"))
    assert [row["token"] for row in streamed] == details["tokens"]
    assert [row["index"] for row in streamed] == list(range(1, len(streamed) + 1))
    assert [row["generated_text"] for row in streamed] == [None] * (len(streamed) - 1) + [TEXT]
    n = len(running.service.prompt_ids("hi"))
    assert streamed[-1]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": len(streamed),
        "seed": None,
        "input_length": n,
    }
    assert events(ask(running, "/", {**INPUT, "stream": True})) == streamed


def test_parameters_are_obeyed(running: Running) -> None:
    cut = tgi(running, max_new_tokens=3, details=True).body
    assert (cut["details"]["finish_reason"], cut["details"]["generated_tokens"]) == ("length", 3)
    stopped = tgi(running, stop=["sat"], details=True, return_full_text=True).body
    assert stopped["generated_text"] == "hi" + TEXT[: TEXT.index("sat") + 3]  # TGI keeps the stop
    assert stopped["details"]["finish_reason"] == "stop_sequence"
    assert "hi" + "".join(t["text"] for t in stopped["details"]["tokens"]) == stopped["generated_text"]
    prefill = tgi(running, decoder_input_details=True).body["details"]["prefill"]
    assert [row["id"] for row in prefill] == running.service.prompt_ids("hi")
    assert [row["logprob"] is None for row in prefill] == [True] + [False] * (len(prefill) - 1)
    body = {"inputs": "one two three four", "parameters": {"truncate": 2, "decoder_input_details": True}}
    kept = ask(running, "/generate", body).body["details"]["prefill"]
    assert [row["id"] for row in kept] == running.service.prompt_ids("one two three four")[-2:]
    for grammar in (
        {"type": "json", "value": {"type": "boolean"}},
        {"type": "json", "value": '{"type": "boolean"}'},
        {"type": "json_schema", "value": {"name": "n", "schema": {"type": "boolean"}}},
        {"type": "regex", "value": "true|false"},
    ):
        assert tgi(running, grammar=grammar).body["generated_text"] in ("true", "false")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"best_of": 2}, "parameters.best_of"),
        ({"typical_p": 0.5}, "parameters.typical_p"),
        ({"watermark": True}, "parameters.watermark"),
        ({"truncate": 0}, "parameters.truncate"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens"),
        ({"temperature": -1}, "parameters.temperature"),
        ({"repetition_penalty": 0}, "parameters.repetition_penalty"),
        ({"top_n_tokens": 21}, "parameters.top_n_tokens"),
        ({"stop": [""]}, "parameters.stop"),
        ({"grammar": {"type": "x", "value": 1}}, "parameters.grammar"),
        ({"grammar": {"type": "json", "value": "{"}}, "parameters.grammar.value"),
        ({"grammar": {"type": "regex", "value": "("}}, "parameters.grammar.value"),
        ({"grammar": {"type": "json", "value": {"type": "nope"}}}, "parameters.grammar.value"),
        (5, "parameters"),
    ],
)
def test_wrong_parameters_are_named(running: Running, parameters: Any, said: str) -> None:
    for path in ("/generate", "/generate_stream", "/"):
        answer = ask(running, path, {"inputs": "hi", "parameters": parameters})
        assert answer.status == 400, answer.data
        assert set(answer.body) == {"error", "error_type"}
        assert answer.body["error_type"] == "validation"
        assert said in answer.body["error"]


def test_wrong_bodies_are_named(running: Running) -> None:
    for path, body, said in (
        ("/generate", {"inputs": ""}, "inputs"),
        ("/generate_stream", {**INPUT, "stream": False}, "stream"),
        ("/generate_stream", {"inputs": "a", "parameters": {"decoder_input_details": True}}, "decoder_input"),
        ("/generate", {"inputs": "a", "model": "tiny", "parameters": {"adapter_id": "tiny"}}, "adapter_id"),
    ):
        answer = ask(running, path, body)
        assert (answer.status, said in answer.body["error"]) == (400, True), answer.data
    for body in ({**INPUT, "model": "x"}, {"inputs": "a", "parameters": {"adapter_id": "x"}}):
        answer = ask(running, "/generate", body)
        assert (answer.status, "'tiny'" in answer.body["error"]) == (404, True)
    told = ask(running, "/generate", {**INPUT, "mood": 1, "parameters": {"x": 1}})
    assert told.headers["x-spola-unknown-fields"] == "parameters.x, mood"


def test_info_and_props_tell_the_model_and_no_path(running: Running) -> None:
    for path in ("/info", "/info?model=tiny", "/props", "/props?model=tiny"):
        answer = ask(running, path)
        assert answer.status == 200
        assert running.service.config.path.rpartition("/")[0].encode() not in answer.data
        assert ask(running, path.partition("?")[0] + "?model=..%2fx").status == 404
    info = ask(running, "/info").body
    assert (info["model_id"], info["max_total_tokens"], info["max_input_tokens"]) == ("tiny", 256, 255)
    props = ask(running, "/props").body
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["chat_template"] == running.service.template.source  # type: ignore[union-attr]
    assert (props["model_path"], props["modalities"]["vision"]) == ("tiny", False)


def test_every_borrowed_route_asks_for_the_key(tmp_path: Path) -> None:
    keys = read_keys(None, "secret-secret-secret")
    posts = ("/", "/generate", "/generate_stream", "/completion", "/api/chat", "/api/generate")
    with serving(tmp_path, server=ServerOptions(keys=keys)) as running:
        for path in (*posts, "/api/embed", "/api/show"):
            assert ask(running, path, {}).status == 401, path
            headers = {"Authorization": "Bearer secret-secret-secret"}
            assert ask(running, path, {}, headers).status == 400, path
        for path in ("/info", "/props", "/api/tags", "/api/ps", "/api/version"):
            assert ask(running, path).status == 401, path
        assert ask(running, "/").status == 200  # the page


# --- llama-server


def llama(running: Running, **body: Any) -> Any:
    return ask(running, "/completion", {"prompt": "hi", **body})


def test_completion_and_its_stream_say_the_same(running: Running) -> None:
    whole = llama(running, return_tokens=True, n_probs=2).body
    assert (whole["content"], whole["stop"], whole["stop_type"]) == (TEXT, True, "eos")
    assert whole["tokens_evaluated"] == len(running.service.prompt_ids("hi"))
    assert whole["tokens_predicted"] == len(whole["tokens"]) == whole["timings"]["predicted_n"]
    probs = whole["completion_probabilities"]
    assert b"".join(bytes(row["bytes"]) for row in probs).decode() == TEXT
    assert [row["id"] for row in probs] == whole["tokens"][: len(probs)]
    assert all(len(row["top_logprobs"]) == 2 for row in probs)
    *pieces, last = events(llama(running, stream=True, n_probs=2))
    assert "".join(piece["content"] for piece in pieces) == TEXT
    assert [id for piece in pieces for id in piece["tokens"]] == whole["tokens"]
    assert [row for piece in pieces for row in piece.get("completion_probabilities", ())] == probs
    assert (last["content"], last["stop"], last["generation_settings"]["n_probs"]) == ("", True, 2)
    drawn = llama(running, n_probs=1, post_sampling_probs=True).body["completion_probabilities"]
    assert all(0 <= row["prob"] <= 1 and set(row["top_probs"][0]) >= {"id", "token", "prob"} for row in drawn)


def test_fields_of_a_completion_are_obeyed(running: Running) -> None:
    cut = llama(running, n_predict=3).body
    assert (cut["tokens_predicted"], cut["stop_type"]) == (3, "limit")
    stopped = llama(running, stop=["sat"]).body
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", "sat")
    assert stopped["content"] == TEXT[: TEXT.index("sat")]
    assert llama(running, json_schema={"type": "boolean"}).body["content"] in ("true", "false")
    assert llama(running, grammar='root ::= "yes"').body["content"] == "yes"
    first = running.parrot.answer[0]
    assert llama(running, logit_bias=[[first, -100]], n_predict=1).status == 200
    ids = running.service.prompt_ids("one two")
    for prompt in ("one two", ids, ["one two"], {"prompt_string": "one two"}, [ids], ["one two", 5]):
        told = llama(running, prompt=prompt, n_predict=1).body
        assert told["tokens_evaluated"] == len(ids) + (prompt == ["one two", 5])
    long = "a longer prompt, so that its blocks are kept " * 3
    assert llama(running, prompt=long, n_predict=1).status == 200
    assert llama(running, prompt=long, n_predict=1).body["tokens_cached"] > 0
    assert llama(running, prompt=long, n_predict=1, cache_prompt=False).body["tokens_cached"] == 0


@pytest.mark.parametrize(
    "more",
    [
        {"mirostat": 2},
        {"typical_p": 0.5},
        {"samplers": ["top_k"]},
        {"id_slot": 1},
        {"lora": [{"id": 0, "scale": 1}]},
        {"repeat_last_n": 64, "repeat_penalty": 1.1},
        {"n_predict": 0},
        {"temperature": -1},
        {"repeat_penalty": 0},
        {"n_probs": 21},
        {"logit_bias": [["text", 1.0]]},
        {"logit_bias": [[5, False]]},
        {"response_fields": ["content"]},
        {"prompt": ["a", "b"]},
        {"prompt": []},
        {"prompt": [True]},
        {"json_schema": {"type": "nope"}},
    ],
)
def test_wrong_fields_of_a_completion_are_named(running: Running, more: dict[str, Any]) -> None:
    answer = llama(running, **more)
    assert answer.status == 400, answer.data
    assert answer.body["error"]["code"] == 400
    assert next(iter(more)) in answer.body["error"]["message"]
