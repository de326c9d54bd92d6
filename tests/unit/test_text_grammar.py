"""Grammars: what compiles follows the form exactly, what cannot be enforced is refused with its place."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from spola.core.errors import RequestError
from spola.core.structured import StructuredOutputsParams
from spola.text.grammar import Grammars, json_source
from spola.text.tokenizer import Tokenizer
from support.grammars import allowed, of, takes
from support.schemas import Walker, random_schema

jsonschema = pytest.importorskip("jsonschema")


def test_each_kind(tokenizer: Tokenizer, grammars: Grammars) -> None:
    for wanted, good, bad in (
        ({"regex": "[a-c]+x?"}, ["abc", "ax"], ["", "x", "abcd", "axx"]),
        ({"regex": "^ab$"}, ["ab"], ["a", "abb"]),
        ({"choice": ("yes", "no", "北京", 'a"b\\c', "\n")}, ["yes", "北京", 'a"b\\c', "\n"], ["ye", "yesno"]),
        ({"grammar": 'root ::= "a" ("b" | "c")+'}, ["ab", "acbc"], ["a", "b"]),
        ({"grammar": 'start: "a" B+\nB: /[bc]/'}, ["ab", "acbc"], ["a", "b"]),
        ({"json_object": True}, ["{}", '{"a": [1, null]}'], ["[]", "1", "{} ", " {}", '{"a":  1}']),
        ({"json": {"type": "integer"}}, ["5", "-12"], ["5.5", '"5"']),
        ({"json": '{"enum": ["a", 1]}'}, ['"a"', "1"], ["a", "2"]),
        ({"json": True}, ["1", "{}"], [""]),
    ):
        grammar = of(grammars, **wanted)
        for text in good:
            assert takes(tokenizer, grammar, text), (wanted, text)
        for text in bad:
            assert not takes(tokenizer, grammar, text), (wanted, text)


def test_blanks_are_bounded(tokenizer: Tokenizer, grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    some, none = of(grammars, json=schema), of(grammars, json=schema, disable_any_whitespace=True)
    for text, with_some, with_none in (
        ('{"a":[1,2]}', True, True),
        ('{"a": [1, 2]}', True, False),
        ('{\n  "a": [\n    1\n  ]\n}', True, False),
        ('{"a":  [1]}', False, False),
        ('{"a":\n\n[1]}', False, False),
        ('{"a":\t[1]}', False, False),
    ):
        assert takes(tokenizer, some, text) == with_some
        assert takes(tokenizer, none, text) == with_none


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "[z-a]"}, "invalid character class"),
        ({"regex": "(?=x)y"}, "look-around"),
        ({"regex": "a\\b"}, "lookarounds"),
        ({"grammar": "nonsense"}, "no grammar"),
        ({"grammar": "root ::= root"}, "allows no answer"),
        ({"grammar": "start: ("}, "Expected"),
        ({"json": {"type": "strin"}}, "at /type:"),
        ({"json": {"enum": []}}, "enum"),
        ({"json": False}, "nothing validates"),
        ({"json": "[]"}, "object or a boolean"),
        ({"json": "null"}, "object or a boolean"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": {"$ref": "#"}}, "allows no answer"),
        ({"json": {"$ref": "#/nowhere"}}, "at /$ref:"),
        ({"json": {"$ref": "http://example.com/x"}}, "at /$ref:"),
        ({"json": {"format": "nope"}}, "at /format:"),
        ({"json": {"not": {}}}, "at /not: the keyword 'not'"),
        (
            {"json": {"properties": {"a/b": {"items": {"uniqueItems": True}}}}},
            "at /properties/a~1b/items/uniqueItems:",
        ),
        ({"json": {"anyOf": [{"type": "null"}, {"contains": {}}]}}, "at /anyOf/1/contains:"),
        ({"json": {"$defs": {"d": {"if": {}}}, "$ref": "#/$defs/d"}}, "at /$defs/d/if:"),
        ({"json": {"properties": {"a": 5}}}, "at /properties/a:"),
        (
            {"json": {"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}},
            "at /properties/a/oneOf:",
        ),
        ({"json": {"patternProperties": {"a*": {}, "aaa*": {"type": "null"}}}}, "at /patternProperties:"),
        ({"json": {"items": {"type": "string", "pattern": "\\cC"}}}, "at /items/pattern:"),
        ({"json": {"type": "integer", "multipleOf": 0.123456789}}, "at /multipleOf:"),
        ({"json": {"allOf": [True, False]}}, "at /allOf/1:"),
        ({"json": {"$ref": "#here"}}, "at /$ref:"),
        ({"json": {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcd"]}}, "at /allOf:"),
        ({"json": {"type": "object", "x-guidance": {"lenient": True}}}, "x-guidance"),
    ],
)
def test_what_cannot_be_enforced_is_refused(grammars: Grammars, wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        of(grammars, **wanted)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.param == "structured_outputs"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "wanted",
    [
        {"regex": "a{1000000}"},
        {"regex": "(a{1000}){1000}"},
        {"regex": "(a?){500}a{500}"},
        {"regex": "(((((x{9}){9}){9}){9}){9}){9}"},
        {"regex": "(" * 200 + ")" * 200},
        {"regex": "x" * 100_000},
        {"regex": "|".join(f"x{i}y" for i in range(20_000))},
        {"grammar": "x" * 100_000},
        {"choice": tuple("x" * 100 for _ in range(4000))},
        {"json": deep(100)},
        {"json": deep(5000)},
        {"json": "[" * 100_000},
        {"json": {"properties": {f"k{i}": {} for i in range(5000)}}},
        {
            "grammar": "start: T\n"
            + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(20))
            + 'T20: "a"\nT: T0'
        },
        {"json": {"enum": list(range(50_000))}},
        {"json": {"description": "x" * 300_000}},
        {"json": {"type": "string", "pattern": "(a{1000}){1000}"}},
        {"json": {"patternProperties": {"a{100000}": {}}}},
    ],
)
def test_hostile_forms_are_refused_at_once(grammars: Grammars, wanted: dict[str, Any]) -> None:
    started = time.thread_time()
    with pytest.raises(RequestError):
        of(grammars, **wanted)
    assert time.thread_time() - started < 2.0


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": {"type": "string", "maxLength": 2000}},
        {"json": {"type": "string", "maxLength": 2_000_000}},
        {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 10_000}},
        {
            "json": {
                "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
                | {"d30": {"type": "integer"}},
                "$ref": "#/$defs/d0",
            }
        },
        {"regex": "(x+x+)+y"},
        {"regex": "(.*a){25}"},
        {"grammar": 'start: a\na: a a | "x" | a a a\n'},
    ],
)
def test_costly_ones_are_followed_within_bounds(
    tokenizer: Tokenizer, grammars: Grammars, wanted: dict[str, Any]
) -> None:
    guard = of(grammars, **wanted).guard()
    rng, started = random.Random(0), time.thread_time()
    for _ in range(30):
        if guard.accept((rng.choice(sorted(allowed(guard))),)) is not None:
            break
    assert time.thread_time() - started < 2.0


def test_whole_numbers_count(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = of(grammars, json={"type": "array", "minItems": 1.0, "maxItems": 2.0, "items": {"const": 2}})
    assert takes(tokenizer, grammar, "[2,2]")
    assert not takes(tokenizer, grammar, "[]")


def test_answers_of_random_schemas_validate(tokenizer: Tokenizer, grammars: Grammars) -> None:
    walker, taken, drawn = Walker(tokenizer), 0, 0
    refusals: list[str] = []
    for seed in range(60):
        rng = random.Random(1000 + seed)
        schema = random_schema(rng)
        try:
            grammar = grammars.compile([json_source(schema, "p")], "p")
        except RequestError as error:
            refusals.append(str(error))
            continue
        taken += 1
        text = walker.draw(grammar, rng)
        if text is not None:
            drawn += 1
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
    assert all(said.startswith("p: at /") for said in refusals), refusals
    assert taken >= 45
    assert drawn >= 40


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("2024-02-29", True),
        ("2000-02-29", True),
        ("0004-02-29", True),
        ("2021-02-29", False),
        ("1900-02-29", False),
        ("0000-02-29", False),
        ("0000-01-01", False),
        ("2024-04-31", False),
        ("2024-12-31", True),
        ("2024-13-01", False),
    ],
)
def test_dates_exist(tokenizer: Tokenizer, grammars: Grammars, text: str, valid: bool) -> None:
    grammar = of(grammars, json={"type": ["string", "null"], "format": "date"})
    assert takes(tokenizer, grammar, f'"{text}"') == valid
    assert takes(tokenizer, grammar, "null")
    stamp = of(grammars, json={"type": "string", "format": "date-time"})
    assert takes(tokenizer, stamp, f'"{text}T23:59:59+02:00"') == valid
    assert not takes(tokenizer, stamp, f'"{text}T23:59:60Z"')


def test_exactly_one_form() -> None:
    for wanted in (
        {},
        {"regex": "a", "choice": ("b",)},
        {"json": [1]},
        {"regex": ""},
        {"choice": ()},
        {"choice": ("",)},
        {"choice": ("a",) * 5000},
        {"grammar": 5},
    ):
        with pytest.raises(RequestError, match="structured_outputs"):
            StructuredOutputsParams(**wanted)
