"""Checks of a model's tokenizer: alone (round trips, special tokens, one BOS), and against another
one's ids.
"""

from __future__ import annotations

from collections.abc import Callable

from spola.core.errors import SpolaError
from spola.text.chat import ChatTemplate
from spola.text.to_gguf import PROBE
from spola.text.tokenizer import Tokenizer

__all__ = ["compare_tokenizers", "own_tokenizer"]

_TEXTS = (
    PROBE,
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2\n\n\nprint(f(3))\n",
    "1234567890 3.14159 1e-5 0x1F",
    "  two spaces, \t tab, trailing  ",
    "I'LL don't we've they'RE",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "Ελληνικά, кириллица, العربية, עברית, हिन्दी",
    "😸👩‍🚀🏳️‍🌈 ½ ﬁ x² café cafe\u0301",
)


def own_tokenizer(tokenizer: Tokenizer, template: ChatTemplate | None) -> list[str]:
    """What is wrong with a tokenizer by itself, one line each."""
    problems = []
    bytes_known = _bytes_known(tokenizer)
    for given in _TEXTS:
        text = "".join(char for char in given if bytes_known.issuperset(char.encode()))
        back = tokenizer.decode(tokenizer.encode(text, add_bos=False))
        if back != text and _lossless(tokenizer):
            problems.append(f"{_first_difference(text, back)} does not come back from its ids")
    for name, token in (("BOS", tokenizer.bos_id), ("EOS", tokenizer.eos_id)):
        if token is None:
            continue
        if not tokenizer.is_special(token):
            problems.append(f"{name}, id {token} ({tokenizer.token_text(token)!r}), is no control token")
        text = tokenizer.token_text(token)
        if tokenizer.encode(text, add_bos=False, parse_special=True) != [token]:
            problems.append(f"{name}, id {token}: its text {text!r} is not read as that token")
    if not tokenizer.eos_ids:
        problems.append("no token ends a text")
    if template is not None:
        problems += _chat(tokenizer, template)
    return problems


def _chat(tokenizer: Tokenizer, template: ChatTemplate) -> list[str]:
    """One BOS at most, and the template's markers read as control tokens."""
    try:
        text = template.render([{"role": "user", "content": "hello"}])
    except SpolaError as error:
        return [f"the chat template fails on one user message: {error}"]
    ids = tokenizer.encode(text, parse_special=True)
    bos = tokenizer.bos_id
    starts = tokenizer.token_text(bos) if bos is not None else ""
    if starts and tokenizer.vocab.add_bos and text.startswith(starts + starts):
        return ["the chat template writes BOS twice"]
    if bos is not None and ids[:2] == [bos, bos]:
        return ["a chat begins with two BOS"]
    # Marks in <|...|> that are cut into pieces are tokens that the vocabulary lost or renamed.
    marks = [part.split("|>")[0] for part in text.split("<|")[1:] if "|>" in part]
    for mark in dict.fromkeys(marks):
        full = f"<|{mark}|>"
        if len(tokenizer.encode(full, add_bos=False, parse_special=True)) != 1:
            return [f"the chat template writes {full!r}, which is no token of this vocabulary"]
    return []


def _bytes_known(tokenizer: Tokenizer) -> frozenset[int]:
    """Bytes that have a token: some byte-level vocabularies lack a few, and leave them out of a text."""
    if tokenizer.vocab.model != "gpt2":
        return frozenset(range(256))
    ordinary = (i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i))
    return frozenset(found[0] for i in ordinary if len(found := tokenizer.token_bytes(i)) == 1)


def _lossless(tokenizer: Tokenizer) -> bool:
    """Whether text comes back as it was: not with normalizing vocabularies."""
    pre = tokenizer.vocab.pre
    return (
        tokenizer.vocab.model != "t5"
        and not (pre is not None and pre.nfc)
        and tokenizer.vocab.pre is not None
    )


def compare_tokenizers(first: Tokenizer, second: Tokenizer) -> list[str]:
    """Where ``first`` (of a GGUF file) gives other ids than ``second`` (of the folder), or has
    other settings.
    """
    problems = []
    known = min(first.vocab_size, second.vocab_size)
    names: list[tuple[str, Callable[[Tokenizer], object]]] = [
        ("BOS", lambda t: t.bos_id),
        ("EOS", lambda t: t.eos_id),
        ("whether BOS is added", lambda t: t.vocab.add_bos),
        ("whether EOS is added", lambda t: t.vocab.add_eos),
    ]
    for name, read in names:
        if read(first) != read(second):
            problems.append(f"{name} is {read(first)}, in the folder {read(second)}")
    for token in range(known):
        if second.is_special(token) and first.token_bytes(token) != second.token_bytes(token):
            shown = first.token_text(token), second.token_text(token)
            problems.append(f"special token {token} is {shown[0]!r}, in the folder {shown[1]!r}")
        elif second.is_special(token) and not first.is_special(token) and second.token_text(token):
            problems.append(f"special token {token} ({second.token_text(token)!r}) is an ordinary one here")
    for text in _TEXTS:
        for part in (text, *text.split(" ")):
            mine, theirs = first.encode(part, add_bos=False), second.encode(part, add_bos=False)
            if mine != theirs:
                problems.append(f"{part[:40]!r} has ids {mine[:8]}, in the folder {theirs[:8]}")
                break
    return problems


def _first_difference(a: str, b: str) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return repr(a[max(0, at - 8) : at + 8])
