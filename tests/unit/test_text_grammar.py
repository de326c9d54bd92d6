"""Grammars: what compiles follows the form exactly, what cannot be enforced is refused with its place."""

from __future__ import annotations

import json
import random
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spola.core.errors import RequestError
from spola.core.structured import StructuredOutputsParams
from spola.text.compile_lane import Lane
from spola.text.grammar import Grammar, Grammars, json_source, lark_source
from spola.text.grammar_cache import GrammarCache
from spola.text.grammar_guard import BothGuards, GrammarGuard
from spola.text.grammar_trial import needs_trial
from spola.text.stops import StopGuard
from spola.text.tokenizer import Tokenizer
from support.schemas import Walker, random_schema
from support.tiny import Tiny

jsonschema = pytest.importorskip("jsonschema")
LLMatcher = pytest.importorskip("llguidance").LLMatcher


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(Tiny().metadata())


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def of(grammars: Grammars, **wanted: Any) -> Grammar:
    return grammars.of(StructuredOutputsParams(**wanted))


def takes(tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is a whole answer."""
    guard = grammar.guard()
    ended = None
    for token in tokenizer.encode(text, add_bos=False):
        if ended is not None:
            return False
        try:
            ended = guard.accept((token,))
        except RuntimeError:
            return False
    return guard.complete


def allowed(guard: GrammarGuard | BothGuards, words: int = 9) -> set[int]:
    buffer = bytearray(4 * words)
    assert guard.mask(memoryview(buffer).cast("I"))
    return {i for i in range(32 * words) if buffer[i // 8] >> (i % 8) & 1}


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


def test_what_would_not_end_is_tried_out_elsewhere(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns that must all hold: time and memory grow with the power set, and nothing interrupts that."""
    monkeypatch.setattr("spola.text.grammar_trial.CPU_S", 1)
    words = [{"type": "string", "pattern": f".*{chr(97 + i)}.*"} for i in range(24)]
    for _ in range(2):  # the second time it is remembered
        started = time.process_time()
        with pytest.raises(RequestError, match="takes too long to compile"):
            of(grammars, json={"allOf": words})
        assert time.process_time() - started < 1.0
    harmless = {"anyOf": words}
    assert needs_trial(harmless, json.dumps(harmless))
    assert of(grammars, json=harmless).guard()
    for plain in ({"type": "string", "pattern": "x"}, {"properties": {f"k{i}": words[i] for i in range(20)}}):
        assert not needs_trial(plain, json.dumps(plain))


def test_whole_numbers_count(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = of(grammars, json={"type": "array", "minItems": 1.0, "maxItems": 2.0, "items": {"const": 2}})
    assert takes(tokenizer, grammar, "[2,2]")
    assert not takes(tokenizer, grammar, "[]")


def test_one_compiles_for_all_who_ask(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, gate = [], threading.Event()
    made = Grammars._compiled

    def slow(self: Grammars, text: str, param: str) -> Any:
        calls.append(text)
        assert gate.wait(20)
        return made(self, text, param)

    monkeypatch.setattr(Grammars, "_compiled", slow)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(of, grammars, regex="all.who.ask") for _ in range(4)]
        gate.set()
        assert len({id(one.result(20)) for one in asked}) == 1
    assert len(calls) == 1


def test_the_lane() -> None:
    lane = Lane(1)
    assert lane.run(lambda: 5) == 5
    with pytest.raises(KeyError):
        lane.run(lambda: {}["x"])
    assert lane.run(lambda: time.sleep(0.1) or threading.current_thread().name) == "spola-compile"


def test_who_waits_too_long_for_the_lane_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spola.text.compile_lane.WAIT_S", 0.01)
    lane, gate = Lane(1), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lane.run, lambda: gate.wait(20))
        while lane._free.acquire(blocking=False):  # until the first has begun
            lane._free.release()
        with pytest.raises(RequestError) as caught:
            lane.run(lambda: None)
        assert (caught.value.status, caught.value.code) == (503, "busy")
        gate.set()
        assert first.result(20)


def test_the_guard_stops_when_nothing_can_follow(tokenizer: Tokenizer, grammars: Grammars) -> None:
    guard = of(grammars, choice=("ab", "abc")).guard()
    a, b, c = tokenizer.encode("abc", add_bos=False)
    end = tokenizer.eos_id
    assert end is not None
    assert allowed(guard) >= {a}
    assert guard.accept((a, b)) is None
    assert allowed(guard) >= {c, end}
    assert guard.accept((c,)) == 1
    guard.rollback(1)
    assert guard.accept((end,)) == 0
    guard.rollback(3)
    with pytest.raises(RuntimeError, match="not in the grammar"):
        guard.accept((c,))


@pytest.mark.parametrize("seed", range(12))
def test_a_rollback_is_as_if_nothing_had_been(tokenizer: Tokenizer, grammars: Grammars, seed: int) -> None:
    rng = random.Random(seed)
    source = json_source({"type": "object", "properties": {"a": {"type": "string"}}}, "p")
    grammar = grammars.compile([source], "p")
    guard, fresh = grammar.guard(), grammar.guard()
    for _ in range(20):
        ahead = 0
        before = allowed(guard)
        for _ in range(rng.randint(0, 5)):
            ahead += 1
            if guard.accept((rng.choice(sorted(allowed(guard))),)) is not None:
                break
        guard.rollback(ahead)
        assert allowed(guard) == before == allowed(fresh)
        token = rng.choice(sorted(before - set(tokenizer.eos_ids)))
        answers = guard.accept((token,)), fresh.accept((token,))
        assert answers[0] == answers[1]
        if answers[0] is not None:
            break


def test_guards_of_one_grammar_are_apart(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = of(grammars, regex="abc")
    one, other = grammar.guard(), grammar.guard()
    one.accept(tokenizer.encode("ab", add_bos=False))
    assert allowed(other) == allowed(grammar.guard()) != allowed(one)


def test_a_stop_string_and_a_grammar(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = of(grammars, regex="[a-z]+")
    both = BothGuards(grammar.guard(), StopGuard(tokenizer, ["cd"]))
    ids = tokenizer.encode("abcde", add_bos=False)
    assert allowed(both) == allowed(grammar.guard())
    assert both.accept(ids[:3]) is None
    assert both.accept(ids[3:]) == 1
    both.rollback(4)
    assert both.accept(ids) == 4
    short = BothGuards(of(grammars, choice=("ab",)).guard(), StopGuard(tokenizer, ["zz"]))
    assert short.accept(ids[:2]) == 2


def test_padding_and_special_tokens_are_never_allowed(grammars: Grammars, tokenizer: Tokenizer) -> None:
    guard = of(grammars, regex="(.|\\n)*").guard()
    open_to = allowed(guard, words=20)
    special = {i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)}
    assert open_to & special == set(tokenizer.eos_ids)
    assert max(open_to) < tokenizer.vocab_size


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


def test_a_refusal_holds_no_matcher(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the frames of the error nor in what is kept: a matcher may have hundreds of MB."""
    monkeypatch.setattr("spola.text.grammar.DEAR_S", 0.0)
    monkeypatch.setattr("spola.text.grammar.FIRST_S", -1.0)
    grammars = Grammars(tokenizer)
    for _ in range(2):  # the second time as it is remembered
        with pytest.raises(RequestError, match="too long to follow") as caught:
            of(grammars, regex="a+b")
        frames = list(traceback.walk_tb(caught.tb))
        assert frames
        assert not any(isinstance(v, LLMatcher) for frame, _ in frames for v in frame.f_locals.values())
    ((future, _),) = grammars._cache._kept.values()
    assert future.exception().__traceback__ is None


def test_the_cache_is_bounded_by_number_and_by_what_its_grammars_took() -> None:
    cache: GrammarCache[str] = GrammarCache(3, 1.0)

    def add(name: str, seconds: float) -> None:
        future, new = cache.enter(name)
        assert new
        future.set_result(name)
        cache.keep(name, seconds)

    def known(*names: str) -> bool:
        return set(cache._kept) == set(names)

    for name in "abc":
        add(name, 0.1)
    assert cache.enter("a") == (cache._kept["a"][0], False)  # asked for again: the last to go
    add("d", 0.1)
    assert known("a", "c", "d")
    add("e", 0.85)
    assert known("d", "e")
    add("f", 9.0)  # too dear for any neighbour, and kept alone
    assert known("f")
    cache.drop("f")
    cache.keep("f", 1.0)
    assert len(cache) == 0


def test_a_compiled_grammar_is_kept(grammars: Grammars) -> None:
    assert of(grammars, regex="kept") is of(grammars, regex="kept")
    assert grammars.compile([lark_source('start: "q"')], "p") is grammars.compile(
        [lark_source('start: "q"')], "p"
    )
