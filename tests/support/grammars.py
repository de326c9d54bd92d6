"""Grammars as tests ask for them, and what they take."""

from __future__ import annotations

from typing import Any

from spola.core.structured import StructuredOutputsParams
from spola.text.grammar import Grammar, Grammars
from spola.text.grammar_guard import BothGuards, GrammarGuard
from spola.text.tokenizer import Tokenizer

__all__ = ["allowed", "of", "takes"]


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
