"""/v1/messages and /v1/responses: bodies become chats, answers are worded as their clients read them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from spola.server.errors import ApiError
from spola.server.messages import CountRequest, MessagesRequest
from spola.server.messages import chat_body as messages_chat
from spola.server.messages_reply import MessagesReply
from spola.server.responses import ResponsesRequest
from spola.server.responses import chat_body as responses_chat
from spola.server.responses_reply import ResponsesReply
from spola.server.translate import End
from support.running import TEXT, Running
from support.serving import ask

HI = [{"role": "user", "content": "hi"}]
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def events(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of every event; pings left out."""
    out = []
    for block in data.decode().split("\n\n"):
        if block.startswith("event: "):
            name, _, rest = block.removeprefix("event: ").partition("\ndata: ")
            out.append((name, json.loads(rest)))
            assert out[-1][1]["type"] == name
    return out


# --- /v1/messages


def test_a_message_and_its_stream_say_the_same(running: Running) -> None:
    body = {"model": "tiny", "max_tokens": 100, "messages": HI, "system": "be brief"}
    whole = ask(running, "/v1/messages", body, {"anthropic-version": "2023-06-01"}).body
    assert whole["content"] == [{"type": "text", "text": TEXT}]
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "tiny")
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)
    streamed = events(ask(running, "/v1/messages", {**body, "stream": True}).data)
    names = [name for name, _ in streamed]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(data["delta"]["text"] for name, data in streamed if name == "content_block_delta")
    assert text == TEXT
    last = dict(streamed)["message_delta"]
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    for usage in (whole["usage"], last["usage"]):
        counted = ask(running, "/v1/messages/count_tokens", {"messages": HI, "system": "be brief"}).body
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]
        assert usage["output_tokens"] > 10


@pytest.mark.parametrize(
    ("more", "reason", "sequence"),
    [({"max_tokens": 3}, "max_tokens", None), ({"stop_sequences": ["sat"]}, "stop_sequence", "sat")],
)
def test_why_a_message_ended(
    running: Running, more: dict[str, Any], reason: str, sequence: str | None
) -> None:
    body = {"max_tokens": 100, "messages": HI, **more}
    whole = ask(running, "/v1/messages", body).body
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    streamed = dict(events(ask(running, "/v1/messages", {**body, "stream": True}).data))
    assert streamed["message_delta"]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": HI}, "max_tokens"),
        ({"max_tokens": 5}, "messages"),
        ({"max_tokens": 5, "messages": []}, "messages"),
        ({"max_tokens": 0, "messages": HI}, "max_tokens"),
        ({"max_tokens": 5, "messages": [{"role": "x", "content": "a"}]}, "messages[0].role"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"max_tokens": 5, "messages": [5]}, "messages[0].role"),
        (
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content",
        ),
        ({"max_tokens": 5, "messages": HI, "tools": [{"type": "web_search_20250305"}]}, "tools[0].type"),
        ({"max_tokens": 5, "messages": HI, "tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"max_tokens": 5, "messages": HI, "tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "x"}}, "thinking.type"),
        ({"max_tokens": 5, "messages": HI, "temperature": -1}, "temperature"),
    ],
)
def test_wrong_messages_are_named_in_the_protocols_words(running: Running, body: Any, said: str) -> None:
    answer = ask(running, "/v1/messages", body)
    assert answer.status == 400
    assert set(answer.body) == {"type", "error"}
    assert answer.body["type"] == "error"
    assert answer.body["error"]["type"] == "invalid_request_error"
    assert said in answer.body["error"]["message"]


def test_an_unknown_model_is_not_found(running: Running) -> None:
    answer = ask(running, "/v1/messages", {"max_tokens": 5, "messages": HI, "model": "x"})
    assert (answer.status, answer.body["error"]["type"]) == (404, "not_found_error")


def test_tools_and_thoughts_travel_both_ways() -> None:
    request = MessagesRequest(
        max_tokens=9,
        system=[
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b"},
        ],
        messages=[
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "t1", "name": "get", "input": {"city": "Roma"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "sun"}],
                    },
                    text("and?"),
                ],
            },
        ],
        tools=[{"name": "get", "description": "d", "input_schema": {"type": "object"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    chat = messages_chat(request)
    asked = {"id": "t1", "type": "function", "function": {"name": "get", "arguments": '{"city":"Roma"}'}}
    assert chat["messages"] == [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "let me see", "reasoning_content": "hm", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "user", "content": "and?"},
    ]
    assert chat["tools"][0]["function"] == {
        "name": "get",
        "parameters": {"type": "object"},
        "description": "d",
    }
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    assert chat["chat_template_kwargs"] == {"enable_thinking": True}
    assert messages_chat(CountRequest(messages=HI)) == {"messages": HI}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


PIECES: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning": "hm", "reasoning_content": "hm"},
    {"reasoning": "m"},
    {"content": "let "},
    {"content": "me"},
    {
        "tool_calls": [
            {"index": 0, "id": "c0", "type": "function", "function": {"name": "get", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    {
        "tool_calls": [
            {"index": 1, "id": "c1", "type": "function", "function": {"name": "put", "arguments": ""}}
        ]
    },
]


def test_blocks_of_a_message_open_and_close_in_order() -> None:
    reply = MessagesReply("m", 10)
    told = events(b"".join(map(reply.piece, PIECES)) + reply.end(End("tool_calls", None, USAGE, ())))
    opened: list[int] = []
    content: dict[int, dict[str, Any]] = {}
    for name, data in told:
        if name == "content_block_start":
            assert opened == []
            opened.append(data["index"])
            content[data["index"]] = {**data["content_block"], "partial": ""}
        elif name == "content_block_delta":
            assert opened == [data["index"]]
            delta = data["delta"]
            kind = delta["type"].removesuffix("_delta")
            key = {"input_json": "partial"}.get(kind, kind)
            content[data["index"]][key] += delta["partial_json" if kind == "input_json" else kind]
        elif name == "content_block_stop":
            assert opened.pop() == data["index"]
    assert opened == []
    assert [block["type"] for block in content.values()] == ["thinking", "text", "tool_use", "tool_use"]
    assert (content[0]["thinking"], content[1]["text"]) == ("hmm", "let me")
    assert json.loads(content[2]["partial"]) == {"a": 1}
    whole = reply.whole()
    assert [block.get("input") for block in whole["content"]] == [None, None, {"a": 1}, {}]
    assert whole["stop_reason"] == "tool_use"
    assert whole["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 5,
    }


# --- /v1/responses


def test_a_response_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="hi", instructions="be brief")
    assert (made.status, made.output_text, made.error) == ("completed", TEXT, None)
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    text, last, seen, ids = "", None, [], set()
    for event in client.responses.create(model="tiny", input="hi", stream=True):
        assert event.sequence_number == len(seen)
        seen.append(event.type)
        ids |= {event.item_id} if hasattr(event, "item_id") else set()
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert seen[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert seen[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert last is not None
    assert (text, last.response.output_text) == (TEXT, TEXT)
    assert ids == {last.response.output[0].id}


def test_a_response_that_is_cut_says_so(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="hi", max_output_tokens=3)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


def test_a_response_with_logprobs(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="tiny",
        input="hi",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=5,
    )
    part = made.output[0].content[0]
    assert len(part.logprobs) == 5
    assert len(part.logprobs[0].top_logprobs) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "conversation": "c"}, "conversation"),
        ({"input": "a", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "truncation": "auto"}, "truncation"),
        ({"input": "a", "max_tool_calls": 3}, "max_tool_calls"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "a", "include": ["x"]}, "include"),
        ({"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input[0].arguments"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "model": "x"}, "model"),
    ],
)
def test_wrong_responses_are_named(running: Running, body: dict[str, Any], param: str) -> None:
    answer = ask(running, "/v1/responses", body)
    assert answer.status == (404 if param == "model" else 400)
    assert answer.body["error"]["param"] == param


def test_items_become_messages() -> None:
    request = ResponsesRequest(
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "see"}]},
            {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "put", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        ],
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        tools=[{"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": None}],
        tool_choice={"type": "function", "name": "get"},
    )
    chat = responses_chat(request)
    roles = [message["role"] for message in chat["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assistant = chat["messages"][1]
    assert (assistant["content"], assistant["reasoning_content"]) == ("see", "hm")
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert chat["response_format"]["json_schema"] == {
        "name": "n",
        "schema": {"type": "object"},
        "strict": True,
    }
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "get"}}
    assert chat["tools"] == [
        {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
    ]


def test_items_of_a_response_open_and_close_in_order() -> None:
    request = dict.fromkeys(ResponsesRequest.__struct_fields__)
    reply = ResponsesReply("m", request)
    told = events(b"".join(map(reply.piece, PIECES)) + reply.end(End("tool_calls", None, USAGE, ())))
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert told[-1][0] == "response.completed"
    output = told[-1][1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item.get("arguments") for item in output] == [None, None, '{"a":1}', ""]
    assert [item["status"] for item in output] == ["completed"] * 4
    done = [data["item"] for name, data in told if name == "response.output_item.done"]
    assert done == output
    parts = {name: 0 for name, _ in told}
    for name, _ in told:
        parts[name] += 1
    assert parts["response.function_call_arguments.done"] == 2
    failed = events(ResponsesReply("m", request).failed(ApiError(503, "gone", kind="server_error")))
    assert [name for name, _ in failed][-2:] == ["error", "response.failed"]
