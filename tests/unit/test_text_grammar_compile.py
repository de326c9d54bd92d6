"""Who compiles a grammar, where and once, and how long the result is kept."""

from __future__ import annotations

import json
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spola.core.errors import RequestError
from spola.text.compile_lane import Lane
from spola.text.grammar import Grammars, lark_source
from spola.text.grammar_cache import GrammarCache
from spola.text.grammar_trial import needs_trial
from spola.text.tokenizer import Tokenizer
from support.grammars import of

LLMatcher = pytest.importorskip("llguidance").LLMatcher


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
