"""Structured output over HTTP (trouble R24 to R27): enforced in every spelling, or refused by name."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from spola.text.grammar import Grammars
from support.running import TEXT, Running
from support.waiting import PATIENCE_S

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
COMPLETION: dict[str, Any] = {"prompt": "hi", "max_tokens": 200}
SCHEMA = {"enum": ["歪 😸👩‍🚀北京"]}
FORMS: tuple[dict[str, Any], ...] = (
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
        }
    },
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "disable_any_whitespace": True}},
    {"guided_json": SCHEMA},
    {"json_schema": SCHEMA},
)


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_forced_whatever_the_model_says(running: Running, form: dict[str, Any]) -> None:
    """R01, R26: characters of several tokens, parity of both transports, no escapes."""
    status, answer = running.post("/v1/chat/completions", {**CHAT, **form})
    choice = answer["choices"][0]
    assert status == 200
    assert (choice["message"]["content"], choice["finish_reason"]) == ('"歪 😸👩‍🚀北京"', "stop")
    lines = running.chunks("/v1/chat/completions", {**CHAT, **form})
    deltas = [c["delta"].get("content") or "" for chunk in lines for c in chunk["choices"]]
    assert "".join(deltas) == choice["message"]["content"]
    assert not any("\ufffd" in delta for delta in deltas)
    status, answer = running.post("/v1/completions", {**COMPLETION, **form})
    assert (status, answer["choices"][0]["text"]) == (200, '"歪 😸👩‍🚀北京"')


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"choice": ["开心", 'a"b\\c']}}, {"开心", 'a"b\\c'}),
        ({"response_format": {"type": "choice", "choice": ["x"]}}, {"x"}),
        ({"guided_regex": "ab|cd"}, {"ab", "cd"}),
        ({"response_format": {"type": "regex", "regex": "q{3}"}}, {"qqq"}),
        ({"grammar": 'root ::= "x" "y"'}, {"xy"}),
        ({"guided_grammar": 'start: "z"'}, {"z"}),
        ({"response_format": {"type": "grammar", "grammar": 'start: "z"'}}, {"z"}),
        ({"response_format": {"type": "text"}}, {TEXT}),
    ],
)
def test_other_forms(running: Running, form: dict[str, Any], texts: set[str]) -> None:
    for more in ({}, {"ignore_eos": True}, {"min_tokens": 1, "n": 2}, {"stop": ["nowhere"]}):
        if more.get("ignore_eos") and texts == {TEXT}:
            continue
        status, answer = running.post("/v1/chat/completions", {**CHAT, **form, **more})
        assert status == 200
        for choice in answer["choices"]:
            assert choice["message"]["content"] in texts
            assert choice["finish_reason"] == "stop"


def test_a_finished_form_ends_also_under_ignore_eos_and_min_tokens(running: Running) -> None:
    body = {**CHAT, "structured_outputs": {"json": {"const": "a"}}, "ignore_eos": True, "min_tokens": 50}
    status, answer = running.post("/v1/chat/completions", body)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, '"a"')
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_cuts_a_form_too(running: Running) -> None:
    body = {**CHAT, "guided_choice": ["one two three"], "stop": ["two"]}
    status, answer = running.post("/v1/chat/completions", body)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "one ")
    assert answer["choices"][0]["stop_reason"] == "two"


def test_what_is_cut_by_length_says_so(running: Running) -> None:
    body = {**CHAT, "guided_choice": ["one two three"], "max_tokens": 2}
    assert running.post("/v1/chat/completions", body)[1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("form", "param", "said"),
    [
        ({"response_format": 5}, "response_format.type", "one of"),
        ({"response_format": {}}, "response_format.type", "one of"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "one of"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": {}, "not": {}}}}},
            "response_format.json_schema.schema",
            "/not",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, None, "schema"),
        ({"response_format": {"type": "regex"}}, "response_format.regex", "missing"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json": SCHEMA}, "guided_regex": "a"}, "guided_regex", "already"),
        ({"guided_regex": "("}, "guided_regex", "unclosed"),
        ({"guided_regex": "[z-a]"}, "guided_regex", "invalid"),
        ({"guided_regex": "(?=x)y"}, "guided_regex", "look-around"),
        ({"guided_json": {"type": "strin"}}, "guided_json", "/type"),
        ({"guided_json": {"enum": []}}, "guided_json", "enum"),
        ({"guided_json": False}, "guided_json", "false"),
        ({"guided_json": []}, "guided_json", "JSON Schema"),
        ({"guided_choice": []}, "guided_choice", "choice"),
        ({"guided_grammar": "nonsense"}, "guided_grammar", "grammar"),
    ],
)
def test_what_cannot_be_enforced_is_a_400(
    running: Running, form: dict[str, Any], param: str | None, said: str
) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
        for stream in (False, True):
            status, answer = running.post(path, {**body, **form, "stream": stream})
            error = answer["error"]
            assert (status, error["type"]) == (400, "invalid_request_error")
            assert param is None or error["param"] == param
            assert said in error["message"]


def test_the_impossible_is_the_requests_own_fault(running: Running) -> None:
    """R27: a form that only banned tokens could begin."""
    word = running.service.tokenizer.encode("b", add_bos=False)
    body = {**CHAT, "guided_choice": ["a"], "allowed_token_ids": word}
    status, answer = running.post("/v1/chat/completions", body)
    # The null backend draws within the mask only; a real one says that nothing is left.
    assert status in (200, 400)
    assert status == 200 or "mask" in answer["error"]["message"]


def test_hostile_forms_do_not_hold_up_a_stream(running: Running) -> None:
    """R27: another client's stream runs on, unharmed."""
    running.parrot.delay = 0.002
    got: list[str] = []

    def stream() -> None:
        chunks = running.chunks("/v1/chat/completions", {**CHAT, "ignore_eos": True, "max_tokens": 60})
        got.extend(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])

    thread = threading.Thread(target=stream)
    thread.start()
    for regex in ("(a{1000}){1000}", "(", "(a?){500}a{500}", "|".join(f"x{i}y" for i in range(2000))):
        running.post("/v1/chat/completions", {**CHAT, "guided_regex": regex, "max_tokens": 2})
    thread.join(PATIENCE_S)
    assert "".join(got).startswith(TEXT)


def test_streams_go_on_while_a_grammar_is_compiled(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """R27: a compilation that does not end holds up nobody but who asked for it."""
    gate, begun = threading.Event(), threading.Event()
    made = Grammars._compiled

    def endless(self: Grammars, text: str, param: str) -> Any:
        begun.set()
        assert gate.wait(PATIENCE_S)
        return made(self, text, param)

    monkeypatch.setattr(Grammars, "_compiled", endless)
    got: list[tuple[int, Any]] = []
    body = {**CHAT, "guided_regex": "never (seen|heard)"}
    thread = threading.Thread(target=lambda: got.append(running.post("/v1/chat/completions", body)))
    thread.start()
    assert begun.wait(PATIENCE_S)
    chunks = running.chunks("/v1/chat/completions", {**CHAT, "ignore_eos": True, "max_tokens": 60})
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    assert text.startswith(TEXT)
    assert not got
    gate.set()
    thread.join(PATIENCE_S)
    assert got[0][0] == 200
