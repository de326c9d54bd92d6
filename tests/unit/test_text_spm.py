"""SentencePiece tokenizers made from scores, on small vocabularies against the plain algorithms."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spola.core.errors import ModelError, RequestError
from spola.text import gguf_spm, merges_cache
from spola.text.gguf_spm import derive_merges
from spola.text.stream import Detokenizer
from spola.text.tokenizer import Tokenizer
from spola.text.vocab import Vocab, read_vocab

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "a", "b", "c", "é", "▁a", "ab", "▁ab", "abc", "bc", "▁▁", "▁▁▁▁", "aa", "aaa", "ca", "éa"]
SPECIAL = ["<unk>", "<s>", "</s>"]


def spm(pieces=PIECES, user=(), **changes):
    """A vocabulary whose pieces rank in the order given."""
    tokens = [*SPECIAL, *BYTES, *pieces, *user]
    base = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * (3 + 256)
        + [-float(i) for i in range(len(pieces))]
        + [0.0] * len(user),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4] * len(user),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocab.tokens[i] for i in ids]


def by_definition(vocab: Vocab, text: str) -> list[str]:
    """Join the adjacent pair whose whole has the best score, leftmost first, until none is left."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        best, place = -math.inf, -1
        for i in range(len(symbols) - 1):
            token = vocab.ids.get(symbols[i] + symbols[i + 1])
            if token is not None and vocab.types[token] == 1 and vocab.scores[token] > best:
                best, place = vocab.scores[token], i
        if place < 0:
            break
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    out: list[str] = []
    for symbol in symbols:
        out += [symbol] if symbol in vocab.ids else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return out


@settings(max_examples=400, deadline=None)
@given(st.text("ab c é北\n", max_size=20), st.randoms(use_true_random=False))
def test_bpe_equals_the_definition(text, rng):
    pieces = PIECES[:5] + rng.sample(PIECES[5:], len(PIECES) - 5)
    metadata = spm(pieces, add_space_prefix=False)
    tokenizer = Tokenizer.from_gguf(metadata)
    ids = tokenizer.encode(text, add_bos=False)
    assert texts(tokenizer, ids) == by_definition(read_vocab(metadata), text)
    assert tokenizer.decode(ids) == text


def test_defaults_bos_and_space_prefix():
    tokenizer = Tokenizer.from_gguf(spm())
    assert texts(tokenizer, tokenizer.encode("ab")) == ["<s>", "▁ab"]
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
    assert tokenizer.encode("<s>ab", parse_special=True).count(1) == 1
    assert texts(tokenizer, tokenizer.encode("ab", add_bos=False, add_eos=True)) == ["▁ab", "</s>"]


def test_space_prefix_again_after_a_special_token():
    tokenizer = Tokenizer.from_gguf(spm())
    ids = tokenizer.encode("ab</s>ab", parse_special=True)
    assert texts(tokenizer, ids) == ["<s>", "▁ab", "</s>", "▁ab"]


def test_first_space_of_an_answer_survives_in_a_stream():
    tokenizer = Tokenizer.from_gguf(spm())
    ids = tokenizer.encode("ab", add_bos=False)
    assert Detokenizer(tokenizer).push(ids) == " ab"
    assert Detokenizer(tokenizer, start=True).push(ids) == "ab"
    assert Detokenizer(tokenizer, start=True).push([1, *ids]) == "ab"


def test_user_defined_tokens_are_cut_out_first():
    tokenizer = Tokenizer.from_gguf(spm(user=["\n", "\n\n", "  ", "<b>"], add_space_prefix=False))
    ids = tokenizer.encode("a\n\n\n<b>  b", add_bos=False)
    assert texts(tokenizer, ids) == ["a", "\n\n", "\n", "<b>", "  ", "b"]
    assert tokenizer.decode(ids) == "a\n\n\n<b>  b"


def test_text_cannot_spell_a_control_token():
    pieces = [*PIECES, "<", "s", ">", "s>"]
    tokenizer = Tokenizer.from_gguf(spm(pieces, add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode("<s>", add_bos=False)) == ["<", "s>"]


def test_without_byte_tokens_the_unknown_token():
    data = spm()
    keep = [i for i, kind in enumerate(data["tokenizer.ggml.token_type"]) if kind != 6]
    for key in ("tokens", "scores", "token_type"):
        data[f"tokenizer.ggml.{key}"] = [data[f"tokenizer.ggml.{key}"][i] for i in keep]
    tokenizer = Tokenizer.from_gguf(data | {"tokenizer.ggml.add_space_prefix": False})
    assert texts(tokenizer, tokenizer.encode("a北京b", add_bos=False)) == ["a", "<unk>", "b"]


@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000, "北" * 30_000, "ab " * 30_000])
def test_long_text(text):
    tokenizer = Tokenizer.from_gguf(spm())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_order():
    vocab = read_vocab(spm())
    pairs = derive_merges(vocab)
    whole = [vocab.tokens[a] + vocab.tokens[b] for a, b in zip(pairs[::2], pairs[1::2])]
    assert set(whole) == {p for p in PIECES if len(p) > 1}
    scores = [vocab.scores[vocab.ids[w]] for w in whole]
    assert scores == sorted(scores, reverse=True)


# --- the cache of merges


def build_cached(monkeypatch, tmp_path, data):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_spm, "_SLOW_CUTS", 1)
    return Tokenizer.from_gguf(data)


def test_cache_is_written_and_used(monkeypatch, tmp_path):
    first = build_cached(monkeypatch, tmp_path, spm())
    (stored,) = (tmp_path / "spola" / "merges").iterdir()
    monkeypatch.setattr(gguf_spm, "derive_merges", lambda vocab: pytest.fail("derived again"))
    again = build_cached(monkeypatch, tmp_path, spm())
    assert again.encode("aab abc") == first.encode("aab abc")
    assert stored.suffix == ".bin"


def test_another_vocabulary_has_another_file(monkeypatch, tmp_path):
    build_cached(monkeypatch, tmp_path, spm())
    build_cached(monkeypatch, tmp_path, spm(PIECES[::-1]))
    assert len(list((tmp_path / "spola" / "merges").iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_damaged_cache_is_ignored_and_replaced(monkeypatch, tmp_path, damage):
    good = build_cached(monkeypatch, tmp_path, spm()).encode("aab abc")
    (stored,) = (tmp_path / "spola" / "merges").iterdir()
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-8] if damage is None else damage)
    assert build_cached(monkeypatch, tmp_path, spm()).encode("aab abc") == good
    assert stored.read_bytes() == whole


def test_unwritable_cache_is_no_error(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setattr(gguf_spm, "_SLOW_CUTS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert Tokenizer.from_gguf(spm()).encode("ab") == Tokenizer.from_gguf(spm()).encode("ab")


def test_cache_place():
    assert merges_cache.path_of("k", {"XDG_CACHE_HOME": "/x"}).as_posix() == "/x/spola/merges/k.bin"
    home = merges_cache.path_of("k", {"XDG_CACHE_HOME": "relative"})
    assert home.as_posix().endswith("/.cache/spola/merges/k.bin")
    assert home.is_absolute()


# --- unigram

UNIGRAM = {
    "▁": -3.0,
    "a": -4.0,
    "b": -4.5,
    "ab": -6.0,
    "▁a": -5.0,
    "▁ab": -9.5,
    "ba": -7.0,
    "aa": -6.5,
    "c": -8.0,
}


def unigram(with_bytes=False, **changes):
    tokens = ["<pad>", "</s>", "<unk>", *UNIGRAM, *(BYTES if with_bytes else ())]
    n = len(UNIGRAM)
    base = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *UNIGRAM.values(), *([0.0] * 256 if with_bytes else ())],
        "tokenizer.ggml.token_type": [3, 3, 2] + [1] * n + ([6] * 256 if with_bytes else []),
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_eos_token": False,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def best_score(text: str) -> float:
    """The best sum of scores over all ways to cut ``text``; an unknown character costs 10 below the least."""
    unknown = min(UNIGRAM.values()) - 10

    @lru_cache(None)
    def best(at: int) -> float:
        if at == len(text):
            return 0.0
        found = [
            UNIGRAM[text[at:end]] + best(end)
            for end in range(at + 1, len(text) + 1)
            if text[at:end] in UNIGRAM
        ]
        if text[at] not in UNIGRAM:
            found.append(unknown + best(at + 1))
        return max(found)

    return best(0)


@settings(max_examples=300, deadline=None)
@given(st.text("abc ", max_size=14))
def test_unigram_has_the_best_score(text):
    tokenizer = Tokenizer.from_gguf(unigram())
    pieces = texts(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text.replace(" ", "▁")
    assert math.isclose(sum(UNIGRAM[p] for p in pieces), best_score(text.replace(" ", "▁")), abs_tol=1e-6)


def test_unigram_ends_with_eos_by_default():
    data = unigram()
    del data["tokenizer.ggml.add_eos_token"], data["tokenizer.ggml.add_space_prefix"]
    tokenizer = Tokenizer.from_gguf(data)
    assert texts(tokenizer, tokenizer.encode("ab")) == ["▁", "ab", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_unigram_unknown_characters():
    tokenizer = Tokenizer.from_gguf(unigram())
    assert texts(tokenizer, tokenizer.encode("a北京b")) == ["a", "<unk>", "b"]
    tokenizer = Tokenizer.from_gguf(unigram(with_bytes=True))
    ids = tokenizer.encode("a北b<0x41>")
    assert tokenizer.decode(ids) == "a北b<0x41>"
    assert texts(tokenizer, ids)[:5] == ["a", "<0xE5>", "<0x8C>", "<0x97>", "b"]


def test_unigram_merges_spaces_when_the_model_says_so():
    tokenizer = Tokenizer.from_gguf(unigram(remove_extra_whitespaces=True, add_space_prefix=True))
    assert tokenizer.encode("  a   b ") == tokenizer.encode("a b")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (unigram(precompiled_charsmap=[1, 2, 3]), "charsmap"),
        (unigram(precompiled_charsmap=[255, 255, 255, 0] + [0] * 8), "charsmap"),
        (unigram(precompiled_charsmap=["x"]), "charsmap"),
        (unigram(unknown_token_id=-1), "unknown_token_id"),
        (unigram(scores=[0.0]), "scores has 1"),
        (spm(scores=None), "scores"),
        (spm(scores=[math.nan] * (259 + len(PIECES))), r"scores\[0\]"),
        (spm(scores=["a"] * (259 + len(PIECES))), r"scores\[0\]"),
    ],
)
def test_bad_metadata(data, words):
    with pytest.raises(ModelError, match=words):
        Tokenizer.from_gguf(data)


def test_damaged_character_map_is_an_error_of_the_model():
    # The table's first unit points far outside it, which the library only finds out while reading.
    table = bytes([0, 255, 255, 255]) + bytes(12)
    data = unigram(precompiled_charsmap=list((len(table)).to_bytes(4, "little") + table + b"x\0"))
    tokenizer = Tokenizer.from_gguf(data)
    with pytest.raises(RequestError, match="precompiled_charsmap"):
        tokenizer.encode("a")


def test_absurdly_long_tokens_are_refused():
    with pytest.raises(ModelError, match="long"):
        Tokenizer.from_gguf(spm([*PIECES, "a" * 100_000]))


def test_bytes_that_are_no_text_in_the_vocabulary():
    data = spm([*PIECES, b"a\xff".decode("utf-8", "surrogateescape")])
    tokenizer = Tokenizer.from_gguf(data)
    last = tokenizer.vocab_size - 1
    assert tokenizer.token_bytes(last) == b"a\xff"
    assert tokenizer.token_text(last) == "a\ufffd"
    with pytest.raises(RequestError):
        tokenizer.token_bytes(last + 1)
