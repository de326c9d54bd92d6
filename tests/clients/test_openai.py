"""The ``openai`` package, all that it does against a server, at once and by its asynchronous client."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator

import pydantic
import pytest

openai = pytest.importorskip("openai")

MODEL = "smollm2"
ASK = [{"role": "user", "content": "What is the weather in Rome?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS, "strict": True}}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_and_its_stream(client: openai.OpenAI) -> None:
    how = {"model": MODEL, "messages": ASK, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**how, logprobs=True, top_logprobs=2)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens <= 16
    assert all(e.logprob <= 0 and len(e.top_logprobs) == 2 for e in entries)
    chunks = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**{**how, "temperature": -1})


def test_completions(client: openai.OpenAI) -> None:
    how = {"model": MODEL, "prompt": ["The sea is", "A"], "max_tokens": 8, "temperature": 0, "n": 2}
    made = client.completions.create(**how, logprobs=2)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert made.choices[0].text == made.choices[1].text
    assert len(made.choices[0].logprobs.tokens) == 8
    streamed = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**how, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == [choice.text for choice in made.choices]


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    how = {"model": MODEL, "messages": [{"role": "user", "content": "Invent a person."}], "max_tokens": 80}
    done = client.chat.completions.parse(**how, response_format=Person)
    assert isinstance(done.choices[0].message.parsed, Person)
    with client.chat.completions.stream(**how, response_format=Person) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


def test_tools(client: openai.OpenAI) -> None:
    how = {"model": MODEL, "tools": [WEATHER], "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(messages=ASK, tool_choice="required", **how).choices[0]
    call = whole.message.tool_calls[0]
    assert (whole.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert set(json.loads(call.function.arguments)) == {"city"}
    named = {"type": "function", "function": {"name": "get_weather"}}
    chunks = client.chat.completions.create(messages=ASK, tool_choice=named, stream=True, **how)
    parts = [part for chunk in chunks for c in chunk.choices for part in c.delta.tool_calls or ()]
    assert set(json.loads("".join(part.function.arguments or "" for part in parts))) == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [*ASK, {**whole.message.model_dump(), "tool_calls": [call.model_dump()]}, result]
    assert (
        client.chat.completions.create(messages=history, tool_choice="none", **how).choices[0].message.content
    )


def test_embeddings_and_models(client: openai.OpenAI) -> None:
    made = client.embeddings.create(model=MODEL, input=["a", "b c"])
    assert [row.index for row in made.data] == [0, 1]
    assert math.isclose(sum(x * x for x in made.data[0].embedding), 1, rel_tol=1e-3)
    plain = client.embeddings.create(model=MODEL, input="a", encoding_format="float").data[0].embedding
    assert plain == pytest.approx(made.data[0].embedding, abs=1e-6)
    assert [model.id for model in client.models.list()] == [MODEL]


def test_responses(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="Name a city.", max_output_tokens=16, temperature=0)
    assert made.status in ("completed", "incomplete")
    with client.responses.stream(
        model=MODEL, input="Name a city.", max_output_tokens=16, temperature=0
    ) as stream:
        events = list(stream)
    # What is cut by length ends in response.incomplete, for which the package keeps no final response.
    assert events[-1].type == f"response.{made.status}"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == made.output_text
    parsed = client.responses.parse(
        model=MODEL, input="Invent a person.", text_format=Person, max_output_tokens=80
    )
    assert isinstance(parsed.output_parsed, Person)
    tool = {"type": "function", **WEATHER["function"]}
    asked = client.responses.create(
        model=MODEL, input=ASK, tools=[tool], tool_choice="required", max_output_tokens=60, temperature=0
    )
    call = next(item for item in asked.output if item.type == "function_call")
    assert set(json.loads(call.arguments)) == {"city"}


def test_the_asynchronous_client(url: str) -> None:
    async def all_of_it() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            how = {"model": MODEL, "messages": ASK, "max_tokens": 12, "temperature": 0}
            whole, stream, parsed, vector = await asyncio.gather(
                client.chat.completions.create(**how),
                client.chat.completions.create(**how, stream=True),
                client.chat.completions.parse(**{**how, "max_tokens": 80}, response_format=Person),
                client.embeddings.create(model=MODEL, input="a"),
            )
            text = "".join([c.delta.content or "" async for chunk in stream for c in chunk.choices])
            assert text == whole.choices[0].message.content
            assert isinstance(parsed.choices[0].message.parsed, Person)
            assert vector.data[0].embedding
            leaves = await client.chat.completions.create(**{**how, "max_tokens": 900}, stream=True)
            async for _ in leaves:
                break
            await leaves.close()

    asyncio.run(all_of_it())
