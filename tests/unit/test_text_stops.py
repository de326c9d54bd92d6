"""Stop strings (trouble R17): exact cut, nothing leaked, whatever the division into pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spola.text.stops import StopGuard, StopMatcher, TextStream


class Letters:
    """A tokenizer of fixed pieces: id i stands for pieces[i]; the last id is special."""

    pieces = (b"a", b"b", b"ab", b"ba", b"aab", b"\xe6\xad", b"\xaa", b"c", b" \xf0\x9f\x98", b"<end>")
    strips_first_space = False

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def text_bytes(self, token: int) -> bytes:
        return b"" if self.is_special(token) else self.token_bytes(token)

    def is_special(self, token: int) -> bool:
        return token == len(self.pieces) - 1


def cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: leftmost match, longest at equal position."""
    found = re.search("|".join(re.escape(s) for s in sorted(stops, key=len, reverse=True)), text)
    if not found:
        return text, None
    return text[: found.end() if include else found.start()], found.group()


def run(matcher: StopMatcher, pieces: list[str]) -> str:
    return "".join([*(matcher.push(p) for p in pieces), matcher.finish()])


words = st.text("ab", min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text("abc", max_size=5), max_size=12), st.lists(words, min_size=1, max_size=4), st.booleans()
)
def test_cut_equals_the_definition_for_every_division(pieces, stops, include):
    matcher = StopMatcher(stops, include_stop=include)
    text, matched = cut("".join(pieces), stops, include)
    assert run(matcher, pieces) == text
    assert (matcher.matched is None) == (matched is None)
    if include:
        assert matcher.matched == matched


def test_releases_all_that_cannot_belong_to_a_stop():
    matcher = StopMatcher(["STOP"])
    assert matcher.push("one ST") == "one "
    assert matcher.push("ILL SSTO") == "STILL S"
    assert matcher.push("P and more") == ""
    assert matcher.matched == "STOP"
    assert matcher.push("ignored") == ""
    assert matcher.finish() == ""


def test_a_rival_that_began_earlier_is_waited_for():
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xabc") == "x"
    assert matcher.matched is None
    assert matcher.push("e") == "a"
    assert matcher.matched == "bc"


def test_a_stop_waiting_for_a_longer_one_counts_at_the_end():
    matcher = StopMatcher(["ab", "abc"], include_stop=True)
    assert matcher.push("xab") == "x"
    assert matcher.finish() == "ab"
    assert matcher.matched == "ab"


def test_empty_stop_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


ids = st.lists(st.integers(0, len(Letters.pieces) - 1), max_size=14)
stops = st.lists(st.sampled_from(["ab", "aba", "bb", "歪", "歪a", "\ufffd", "c"]), min_size=1, max_size=3)


def divide(data: st.DataObject, items: list[int]) -> list[list[int]]:
    parts, at = [], 0
    while at < len(items):
        n = data.draw(st.integers(1, len(items) - at))
        parts.append(items[at : at + n])
        at += n
    return parts


@settings(max_examples=300, deadline=None)
@given(st.data(), ids, stops, st.booleans())
def test_stream_and_guard_agree_with_each_other_and_with_any_division(data, ids, stops, include):
    stream = TextStream(Letters(), stops, include_stop=include)
    kept, text = 0, ""
    for token in ids:
        text += stream.push([token])
        kept += 1
        if stream.stopped:
            break
    decided = stream.stopped
    text += stream.finish()

    other, guard, n, ended = (
        TextStream(Letters(), stops, include_stop=include),
        StopGuard(Letters(), stops),
        0,
        False,
    )
    guard = StopGuard(Letters(), stops, include_stop=include)
    again = ""
    for part in divide(data, ids):
        again += other.push(part)
        k = guard.accept(part)
        n += len(part) if k is None else k
        if k is not None:
            ended = True
            break
    assert again + other.finish() == text
    assert (n, ended) == (kept, decided)


@settings(max_examples=200, deadline=None)
@given(ids, ids, ids, stops)
def test_rollback_forgets_exactly(first, tried, after, stops):
    plain, drafted = StopGuard(Letters(), stops), StopGuard(Letters(), stops)
    if plain.accept(first) is not None:
        return
    drafted.accept(first)
    k = drafted.accept(tried)
    drafted.rollback(len(tried) if k is None else k)
    assert drafted.accept(after) == plain.accept(after)


def test_guard_allows_everything_and_remembers_only_what_it_saw():
    guard = StopGuard(Letters(), ["ab"])
    out = memoryview(bytearray(8))
    assert guard.mask(out) is False
    assert bytes(out) == bytes(8)
    guard.rollback(0)
    with pytest.raises(ValueError, match="remembered"):
        guard.rollback(1)
