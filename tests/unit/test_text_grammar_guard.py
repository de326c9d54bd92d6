"""What the guard of a grammar allows, takes and takes back, alone and with stop strings."""

from __future__ import annotations

import random

import pytest

from spola.text.grammar import Grammars, json_source
from spola.text.grammar_guard import BothGuards
from spola.text.stops import StopGuard
from spola.text.tokenizer import Tokenizer
from support.grammars import allowed, of


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
