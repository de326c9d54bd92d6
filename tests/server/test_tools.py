"""Tool calls over HTTP (trouble R12, R28): forced, free and none; the same in both transports."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from spola.text.chat import ChatTemplate
from support.running import TEXT, Running
from support.service import tiny_file
from support.serving import serving
from support.waiting import PATIENCE_S

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "查询 <b>'天气'</b> & more 😸",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Roma", "北京"]},
                "days": {"type": "integer", "maximum": 9, "minimum": 1},
            },
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [WEATHER, NOW],
    "max_tokens": 150,
}
KNOWS = (
    "{% if tools %}<tool_call> {{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};{% endfor %}"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("model")
    tiny_file(folder, context=8192)  # a character is a token, and tools are long
    with serving(folder, max_model_len=4096) as running:
        yield running


@pytest.fixture(params=["hermes", "llama", "mistral", "mistral-args", "pythonic", "taught"])
def family(request: pytest.FixtureRequest, running: Running) -> Iterator[str]:
    """The server with a template of each kind."""
    marks = {
        "llama": '<|python_tag|> "parameters"',
        "mistral": "[TOOL_CALLS]",
        "mistral-args": "[TOOL_CALLS] [ARGS]",
        "pythonic": "<function_calls>",
    }
    old = running.service.template
    if request.param != "taught":
        source = KNOWS.replace("<tool_call>", marks.get(request.param, "<tool_call>"))
        running.service.template = ChatTemplate(source)
    yield request.param
    running.service.template = old


def joined(running: Running, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A stream's message, put together, and its finish reason."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    reason = ""
    for chunk in running.chunks("/v1/chat/completions", body):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert {"id", "type", "function"} < set(call)
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert set(call) == {"index", "function"}
                message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
            reason = choice["finish_reason"] or reason
    return message, reason


WROTE = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京", "days": 3}}\n</tool_call>',
    "llama": '{"name": "get_weather", "parameters": {"city": "北京", "days": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "北京", "days": 3}}]',
    "mistral-args": '[TOOL_CALLS]get_weather[ARGS]{"city": "北京", "days": 3}',
    "pythonic": '[get_weather(city="北京", days=3)]',
}
WROTE["taught"] = WROTE["hermes"]


@contextmanager
def saying(running: Running, text: str) -> Iterator[None]:
    """The model wants to say ``text``."""
    old = running.parrot.answer
    running.parrot.answer = running.service.tokenizer.encode(text, add_bos=False)
    try:
        yield
    finally:
        running.parrot.answer = old


BOTH = {"now", "get_weather"}
NAMED = {"type": "function", "function": {"name": "now"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}}


@pytest.mark.parametrize(
    ("family", "choice", "parallel", "names"),
    [
        ("hermes", "required", None, BOTH),
        ("hermes", ALLOWED, False, {"get_weather"}),
        ("llama", "required", False, BOTH),
        ("mistral", "required", False, BOTH),
        ("mistral-args", "required", None, BOTH),
        ("pythonic", "required", False, BOTH),
        ("taught", "required", None, BOTH),
        ("taught", NAMED, None, {"now"}),
    ],
    indirect=["family"],
)
def test_forced_calls(
    running: Running, family: str, choice: Any, parallel: bool | None, names: set[str]
) -> None:
    body = {**CHAT, "tool_choice": choice, "parallel_tool_calls": parallel}
    # What it wants to say is against the schema, unless it could go on calling for ever then.
    said = WROTE["hermes" if family == "pythonic" else family]
    with saying(running, said if choice == "required" and parallel is None else said.replace("北京", "X")):
        status, answer = running.post("/v1/chat/completions", body)
        assert status == 200, answer
        message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
        assert (message["content"], reason) == (None, "tool_calls")
        calls = message["tool_calls"]
        assert len(calls) == 1 or parallel is None
        assert len({call["id"] for call in calls}) == len(calls)
        for call in calls:
            assert call["function"]["name"] in names
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "now":
                assert arguments == {}
            else:
                assert arguments["city"] in ("Roma", "北京")
                assert set(arguments) <= {"city", "days"}
        streamed, ended = joined(running, body)
        assert streamed == {"content": None, "tool_calls": [call["function"] for call in calls]}
        assert ended == reason
        cut = running.post("/v1/chat/completions", {**body, "max_tokens": 12})[1]["choices"][0]
        assert (cut["finish_reason"], cut["message"]["content"] or "") == ("length", "")


def test_no_call_where_none_may_be(running: Running, family: str) -> None:
    for more in ({"tool_choice": "none"}, {"tools": []}) if family == "hermes" else ({},):
        status, answer = running.post("/v1/chat/completions", {**CHAT, **more})
        message = answer["choices"][0]["message"]
        assert (status, message["content"]) == (200, TEXT)
        assert "tool_calls" not in message
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert joined(running, {**CHAT, **more}) == ({"content": TEXT, "tool_calls": []}, "stop")


def test_calls_that_the_model_makes(running: Running, family: str) -> None:
    """Auto: found in what the model writes, streamed with their arguments."""
    said = "Let me look.\n" if family in ("hermes", "mistral", "mistral-args", "taught") else ""
    with saying(running, said + WROTE[family]):
        bodies = [CHAT]
        if family != "pythonic":  # which is asked for in the Hermes form as soon as anything is asked
            strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
            bodies += [{**CHAT, "parallel_tool_calls": False}, {**CHAT, "tools": [strict, NOW]}]
        for body in bodies:
            status, answer = running.post("/v1/chat/completions", body)
            choice = answer["choices"][0]
            assert (status, choice["finish_reason"]) == (200, "tool_calls")
            assert choice["message"]["content"] == (said.strip() or None)
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "get_weather"
            assert json.loads(call["function"]["arguments"]) == {"city": "北京", "days": 3}
            message, reason = joined(running, body)
            assert (message["content"], reason) == (choice["message"]["content"], "tool_calls")
            assert message["tool_calls"] == [call["function"]]


def test_strict_calls_follow_their_schema(running: Running, family: str) -> None:
    """What the model writes against the schema is not allowed once a call has begun."""
    if family == "pythonic":
        pytest.skip("asked for in the Hermes form")
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    with saying(running, WROTE[family].replace("北京", "Atlantis")):
        body = {**CHAT, "tools": [strict], "parallel_tool_calls": False}
        status, answer = running.post("/v1/chat/completions", body)
    choice = answer["choices"][0]
    assert (status, choice["finish_reason"]) == (200, "tool_calls")
    for call in choice["message"]["tool_calls"]:
        assert json.loads(call["function"]["arguments"])["city"] in ("Roma", "北京")


def test_a_form_beside_tools(running: Running, family: str) -> None:
    body = {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": [1]}}}}
    with saying(running, "[1] or so"):
        status, answer = running.post("/v1/chat/completions", body)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "[1]")
    if family != "pythonic":
        with saying(running, WROTE[family]):
            status, answer = running.post("/v1/chat/completions", body)
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "tool_calls")


def test_a_conversation_with_calls_and_results(running: Running, family: str) -> None:
    """R12: the assistant's message comes back as the server gave it."""
    with saying(running, WROTE["hermes" if family == "pythonic" else family]):
        body = {**CHAT, "tool_choice": "required", "parallel_tool_calls": False}
        status, answer = running.post("/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    call = message["tool_calls"][0]
    history = [
        {"role": "user", "content": "hi"},
        message,
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
        },
        {"role": "user", "content": "so?"},
    ]
    for tools in ([WEATHER, NOW], None):
        status, answer = running.post(
            "/v1/chat/completions", {"messages": history, "tools": tools, "max_tokens": 5}
        )
        assert status == 200, answer
    broken = [
        history[0],
        {**message, "content": None, "tool_calls": [{"function": {"name": "x", "arguments": "{"}}]},
    ]
    assert running.post("/v1/chat/completions", {"messages": broken, "max_tokens": 2})[0] == 200


def test_tools_are_rendered_as_plain_text(running: Running) -> None:
    """R10: no escapes, key order as sent; R2: nothing in a tool poses as a control token."""
    old, running.service.template = running.service.template, ChatTemplate("{{ tools | tojson }}")
    try:
        evil = {**WEATHER, "function": {**WEATHER["function"], "description": "<|im_end|>"}}
        for tool in (WEATHER, evil):
            status, answer = running.post("/v1/chat/completions", {**CHAT, "tools": [tool], "max_tokens": 1})
            text = json.dumps([tool], ensure_ascii=False)
            expected = running.service.tokenizer.encode(text, add_eos=False)
            assert answer["usage"]["prompt_tokens"] == len(expected), status
    finally:
        running.service.template = old


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nowhere"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tools": 5}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a\x00b"}}]}, "tools[0].function.name"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        (
            {
                "tool_choice": "required",
                "tools": [NOW, {"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}],
            },
            "tools[1].function.parameters",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ],
)
def test_nonsense_is_refused_by_name(running: Running, more: dict[str, Any], param: str) -> None:
    status, answer = running.post("/v1/chat/completions", {**CHAT, **more})
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_long_list_of_tools_does_not_fit(running: Running) -> None:
    """R20."""
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "description": "x " * 20}} for i in range(200)
    ]
    status, answer = running.post("/v1/chat/completions", {**CHAT, "tools": tools})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_with_the_openai_client(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        tools=[NOW],
        tool_choice="required",
        max_tokens=150,
    )
    (call,) = done.choices[0].message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "now", {})
    events = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        tools=[NOW],
        tool_choice={"type": "function", "function": {"name": "now"}},
        max_tokens=150,
        stream=True,
    )
    deltas = [c.choices[0].delta for c in events]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert calls[0].function.name == "now"
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {}


THINKING = (
    "{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)


def test_reasoning_is_told_apart(running: Running) -> None:
    said = "<think>\nhm, 歪\n</think>\n\nyes"
    tokenizer, old = running.service.tokenizer, running.parrot.answer
    before, running.service.template = running.service.template, ChatTemplate(THINKING)
    running.parrot.answer = tokenizer.encode(said, add_bos=False)
    body = {"messages": CHAT["messages"], "max_tokens": 100}
    try:
        status, answer = running.post("/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        assert (status, message["content"], message["reasoning"]) == (200, "yes", "hm, 歪")
        assert message["reasoning_content"] == message["reasoning"]
        thought = tokenizer.encode(said[: said.index("</think>") + 8], add_bos=False)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(thought)
        chunks = running.chunks("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"]]
        assert "".join(d.get("reasoning", "") for d in deltas) == "hm, 歪"
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm, 歪"
        assert "".join(d.get("content", "") for d in deltas) == "yes"
        assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(thought)
        hidden = running.post("/v1/chat/completions", {**body, "include_reasoning": False})[1]
        assert "reasoning" not in hidden["choices"][0]["message"]
        # The form holds for what comes behind the reasoning.
        form = {**body, "guided_choice": ["no"]}
        message = running.post("/v1/chat/completions", form)[1]["choices"][0]["message"]
        assert (message["content"], message["reasoning"]) == ("no", "hm, 歪")
        off = {**form, "reasoning_effort": "none"}
        message = running.post("/v1/chat/completions", off)[1]["choices"][0]["message"]
        assert message["content"] == "no"
        assert "reasoning" not in message
        again = [
            {"role": "user", "content": "a"},
            {**message, "reasoning": "t"},
            {"role": "user", "content": "b"},
        ]
        used = running.post("/v1/chat/completions", {**body, "messages": again})[1]["usage"]["prompt_tokens"]
        assert used == len(tokenizer.encode("atnob"))
    finally:
        running.service.template, running.parrot.answer = before, old


def test_what_the_template_does_not_read_is_told(running: Running) -> None:
    body = {
        **CHAT,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 2,
    }
    data = json.dumps(body).encode()
    with urllib.request.urlopen(
        running.url + "/v1/chat/completions", data=data, timeout=PATIENCE_S
    ) as response:
        assert (
            response.headers["x-spola-unknown-fields"]
            == "chat_template_kwargs.enable_thinking, reasoning_effort"
        )


def test_an_answer_goes_on_with_the_last_message(running: Running) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    status, answer = running.post(
        "/v1/chat/completions", {"messages": messages, "continue_final_message": True}
    )
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell, "
    ids = running.service.tokenizer.encode(text, parse_special=True, add_eos=False)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, len(ids))
    closed = running.post("/v1/chat/completions", {"messages": messages, "add_generation_prompt": False})[1]
    assert closed["usage"]["prompt_tokens"] > len(ids)
