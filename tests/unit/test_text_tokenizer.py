"""The tokenizer on the embedded model's vocabulary (trouble R01-R06, R16, R18) and on made-up ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spola.core.errors import ModelError, RequestError
from spola.text.stream import Detokenizer
from spola.text.tokenizer import Tokenizer
from support.vocabularies import metadata, smollm2_file


@pytest.fixture(scope="module")
def smollm2():
    return Tokenizer.from_gguf(metadata(smollm2_file()))


NASTY = "->(x):\n\n  12345 3.14 don't I'LL cafe\u0301 한글\u2029 ½ ﬁ\r\n\t٣٤ <|im_end|>x"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("歪", [34978, 120]),
        (" 😸", [40303, 133]),
        ("<|im_end|>x", [44, 108, 306, 79, 486, 108, 46, 104]),
        ("hello world", [28120, 905]),
        ("", []),
    ],
)
def test_known_ids(smollm2, text, ids):
    assert smollm2.encode(text) == ids


@pytest.mark.parametrize(
    "text", [NASTY, "  x", "a" + " " * 40 + "b", "\n\n\t x", "▁x", " ", "\x00", "北京👩‍🚀"]
)
@pytest.mark.parametrize("parse_special", [False, True])
def test_text_comes_back(smollm2, text, parse_special):
    ids = smollm2.encode(text, parse_special=parse_special)
    assert smollm2.decode(ids, skip_special=False) == text


def test_special_tokens_only_when_asked(smollm2):
    text = "<|im_start|>user\nhi<|im_end|>\n"
    assert smollm2.encode(text, parse_special=True)[0] == 1
    assert 2 in smollm2.encode(text, parse_special=True)
    assert not {0, 1, 2} & set(smollm2.encode(text))
    assert smollm2.decode(smollm2.encode(text, parse_special=True)) == "user\nhi\n"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<|", "im_end", "|>", "<", "a", " "]), max_size=12
    )
)
def test_broken_special_tokens_are_just_text(smollm2, parts):
    text = "".join(parts)
    broken = smollm2.break_special(text, "\ufdd0")
    ids = smollm2.encode(broken, parse_special=True, drop="\ufdd0")
    assert broken.replace("\ufdd0", "") == text
    assert ids == smollm2.encode(text)


def test_no_stray_bos_and_none_twice(smollm2):
    assert smollm2.encode("hi") == [6004]
    assert smollm2.encode("hi", add_bos=True) == [1, 6004]
    once = smollm2.encode("<|im_start|>hi", add_bos=True, parse_special=True)
    assert once == [1, 6004]


def test_bytes_without_a_token_are_left_out_and_nothing_merges_across(smollm2):
    assert smollm2.encode("a\x04b\x13c") == smollm2.encode("a") + smollm2.encode("b") + smollm2.encode("c")
    assert smollm2.encode("th\x04e") == smollm2.encode("th") + smollm2.encode("e")
    assert 0 not in smollm2.encode("\U00040000")


@pytest.mark.parametrize("text", ["\ud83d x", "x\udfff"])
def test_lone_surrogate_is_refused(smollm2, text):
    with pytest.raises(RequestError, match="surrogate"):
        smollm2.encode(text)


@pytest.mark.parametrize("bad", [-1, 49152, 2**40, True, "1", 1.0, None])
def test_foreign_ids_are_refused_by_name(smollm2, bad):
    with pytest.raises(RequestError, match=r"prompt\[1\]"):
        smollm2.check_ids([5, bad], "prompt")
    with pytest.raises(RequestError):
        smollm2.token_bytes(bad)


def test_every_end_token(smollm2):
    assert smollm2.eos_ids == {0, 2}


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "啊" * 30_000, " " * 100_000, "\n" * 50_000 + "x", "<" * 100_000]
)
def test_long_text_without_spaces(smollm2, text):
    ids = smollm2.encode(text, parse_special=True)
    assert smollm2.decode(ids) == text


def test_many_special_tokens(smollm2):
    text = "<|im_start|>user\nhi<|im_end|>\n" * 2000
    assert smollm2.encode(text, parse_special=True).count(2) == 2000


def test_first_space_of_an_answer_survives(smollm2):
    stream = Detokenizer(smollm2)
    assert stream.push(smollm2.encode(" Paris")) == " Paris"


def test_split_character_waits_and_dead_bytes_become_replacement_characters(smollm2):
    stream = Detokenizer(smollm2)
    assert stream.push([34978]) == ""
    assert stream.push([120]) == "歪"
    stream = Detokenizer(smollm2)
    assert [stream.push([40303]) for _ in range(3)] == [" ", "\ufffd ", "\ufffd "]
    assert stream.finish() == "\ufffd"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(0, 60), skip=st.booleans())
def test_any_ids_streamed_equal_the_same_at_once(smollm2, seed, n, skip):
    rng = random.Random(seed)
    ids = [rng.randrange(smollm2.vocab_size) for _ in range(n)]
    stream = Detokenizer(smollm2, skip_special=skip)
    parts = []
    at = 0
    while at < n:
        step = rng.randint(1, 4)
        parts.append(stream.push(ids[at : at + step]))
        at += step
    joined = "".join(parts) + stream.finish()
    assert joined == smollm2.decode(ids, skip_special=skip)
    data = b"".join(smollm2.token_bytes(t) for t in ids if not (skip and smollm2.is_special(t)))
    assert joined == data.decode("utf-8", "replace")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_round_trip_of_text_that_has_tokens(smollm2, text):
    data = b"".join(smollm2.token_bytes(t) for t in smollm2.encode(text))
    missing = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    assert data == bytes(b for b in text.encode() if b not in missing)


def tiny(**changes):
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>", "</s>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 4,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "rwkv"}, "'rwkv'"),
        ({"model": None}, "no tokenizer"),
        ({"pre": "unheard-of"}, "'unheard-of'.*known are:.*qwen2"),
        ({"tokens": []}, "tokens has 0"),
        ({"tokens": "abc"}, "tokens must be an array"),
        ({"tokens": ["a", 1, "ab", "<s>", "</s>"]}, r"tokens\[1\]"),
        ({"token_type": [1, 1]}, "token_type has 2 entries"),
        ({"token_type": [1, 1, 1, 3, 999]}, "small integers"),
        ({"merges": ["ab"]}, r"merges\[0\]"),
        ({"merges": ["a b", "b z"]}, r"merges\[1\]"),
        ({"bos_token_id": 5}, "bos_token_id is 5"),
        ({"eos_token_id": "x"}, "eos_token_id must be int"),
        ({"add_bos_token": 1}, "add_bos_token must be bool"),
        ({"add_bos_token": True, "bos_token_id": 0xFFFFFFFF}, "bos_token_id is not set"),
    ],
)
def test_bad_metadata_is_refused_in_one_line(changes, words):
    data = {k: v for k, v in tiny(**changes).items() if v is not None}
    with pytest.raises(ModelError, match=words) as caught:
        Tokenizer.from_gguf(data)
    assert "\n" not in str(caught.value)


def test_bos_by_default_where_the_pretokenizer_says_so():
    assert Tokenizer.from_gguf(tiny()).encode("ab") == [2]
    assert Tokenizer.from_gguf(tiny(pre="llama-bpe")).encode("ab") == [3, 2]
    assert Tokenizer.from_gguf(tiny(pre="llama-bpe", add_bos_token=False)).encode("ab") == [2]
    assert Tokenizer.from_gguf(tiny(add_bos_token=True, add_eos_token=True)).encode("ab") == [3, 2, 4]


def test_end_markers_marked_wrongly_still_end():
    texts = ["a", "<|im_end|>", "<|endoftext|>", "<|end|>", "</s>"]
    data = tiny(tokens=texts, token_type=[1, 4, 3, 1, 3], merges=[])
    assert Tokenizer.from_gguf(data).eos_ids == {1, 2, 3, 4}


def test_harmony_message_end_does_not_end_the_answer():
    texts = ["a", "<|end|>", "<|return|>", "<|call|>", "</s>"]
    data = tiny(tokens=texts, token_type=[1, 3, 3, 3, 3], merges=[], eos_token_id=2, bos_token_id=4)
    assert Tokenizer.from_gguf(data).eos_ids == {2, 3}


def test_padding_entries_are_known():
    data = tiny(tokens=["a", "b", "ab", "<s>", "[PAD4]"], token_type=[1, 1, 1, 3, 5], eos_token_id=3)
    tokenizer = Tokenizer.from_gguf(data)
    assert tokenizer.padding_ids == {4}
    assert tokenizer.token_bytes(4) == b""


def test_too_many_lengths_of_special_tokens_are_refused():
    texts = ["<" * n for n in range(1, 400)]
    data = tiny(tokens=texts, token_type=[3] * 399, merges=[], bos_token_id=0, eos_token_id=0)
    with pytest.raises(ModelError, match="special tokens"):
        Tokenizer.from_gguf(data)


def test_nfc_only_where_the_model_uses_it():
    tokens = ["c", "a", "f", "e", "Ã", "©", "Ì", "ģ", "Ã©"]
    data = tiny(tokens=tokens, token_type=[1] * 9, merges=["Ã ©"], bos_token_id=0, eos_token_id=0)
    decomposed = "cafe\u0301"
    assert Tokenizer.from_gguf(data).encode(decomposed) == [0, 1, 2, 3, 6, 7]
    qwen = data | {"tokenizer.ggml.pre": "qwen2"}
    assert Tokenizer.from_gguf(qwen).encode(decomposed) == [0, 1, 2, 8]


def test_word_that_is_a_token_skips_merges_for_llama3():
    tokens = ["a", "b", "c", "ab", "abc", "<s>"]
    data = tiny(tokens=tokens, token_type=[1, 1, 1, 1, 1, 3], merges=["a b"], bos_token_id=5, eos_token_id=5)
    assert Tokenizer.from_gguf(data).encode("abc") == [3, 2]
    assert Tokenizer.from_gguf(data | {"tokenizer.ggml.pre": "llama-bpe"}).encode("abc") == [5, 4]


def test_longest_user_defined_token_at_the_leftmost_place():
    tokens = ["a", "b", "\n", "\n\n", "\n\n\n", "<b>"]
    data = tiny(tokens=tokens, token_type=[1, 1, 4, 4, 4, 4], merges=[], bos_token_id=0, eos_token_id=0)
    assert Tokenizer.from_gguf(data).encode("a\n\n\n\nb<b>") == [0, 4, 2, 1, 5]
