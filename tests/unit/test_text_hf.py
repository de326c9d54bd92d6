"""Tokenizers of folders: ids as the library gives them for a whole text, bytes, special tokens, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from spola.core.errors import ModelError
from spola.text.hf import build_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, don't you think?",
    "  leading spaces\tand tabs\n\nand lines 1234567 8.5",
    "Grüße aus München, 北京 и Москва 😸",
] * 20
TEXTS = [
    *CORPUS[:3],
    "",
    " ",
    "x",
    "   three  two ",
    "<|start|>user\n hi<|end|> there <extra>y",
    "a<|end|> b <|end|>c",
    "<|start|><|start|>",
    "\u0000 é e\u0301 ½ ﬁ \r\n 👩‍🚀",
]


def byte_level() -> Tokenizer:
    """As Llama 3 and Qwen: a pattern, then bytes; BOS from the post-processor."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    add_specials(tokenizer)
    bos = tokenizer.token_to_id("<|start|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", bos)]),
        ]
    )
    return tokenizer


def sentencepiece(scheme: str) -> Tokenizer:
    """As Llama 2 (``normalizer``), Mistral and newer conversions (``first``), and Gemma (``never``)."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    last = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        last.append(decoders.Strip(" ", 1, 0))
    elif scheme == "never":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        last.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(last)
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=specials[:3]))
    # The trainer takes no byte tokens: they are put into the vocabulary afterwards.
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    for piece in specials[3:]:
        vocab.setdefault(piece, len(vocab))
    tokenizer = Tokenizer.from_str(json.dumps(data))
    add_specials(tokenizer)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    add_specials(tokenizer)
    return tokenizer


def add_specials(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(["<|start|>", AddedToken("<|end|>", rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<extra>", normalized=False)])


MAKERS = {
    "bytes": byte_level,
    "normalizer": lambda: sentencepiece("normalizer"),
    "first": lambda: sentencepiece("first"),
    "always": lambda: sentencepiece("always"),
    "never": lambda: sentencepiece("never"),
    "unigram": unigram,
}
CONFIG: dict[str, Any] = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>", "rstrip": True}}


@pytest.fixture(scope="module", params=MAKERS)
def library(request: pytest.FixtureRequest) -> Tokenizer:
    return MAKERS[request.param]()


def test_ids_of_whole_texts(library: Tokenizer) -> None:
    ours = build_tokenizer(json.loads(library.to_str()), CONFIG)
    for text in TEXTS:
        wanted = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, parse_special=True, add_bos=False) == wanted, text


def test_text_of_a_user_never_becomes_a_control_token(library: Tokenizer) -> None:
    ours = build_tokenizer(json.loads(library.to_str()), CONFIG)
    control = {library.token_to_id("<|start|>"), library.token_to_id("<|end|>")}
    ids = ours.encode("a <|start|> b<|end|><extra>")
    assert not control & set(ids[ours.vocab.add_bos :])
    assert library.token_to_id("<extra>") in ids


def test_exact_bytes(library: Tokenizer) -> None:
    ours = build_tokenizer(json.loads(library.to_str()), CONFIG)
    for text in TEXTS[:3]:
        ids = library.encode(text, add_special_tokens=False).ids
        unknown = library.token_to_id("<unk>")
        if unknown is None or unknown not in ids:
            assert ours.decode(ids) == library.decode(ids)
    end = library.token_to_id("<|end|>")
    assert ours.is_special(end)
    assert ours.token_bytes(end) == b"<|end|>"


def test_bos_and_ends() -> None:
    data = json.loads(byte_level().to_str())
    bos, end = (t["id"] for t in data["added_tokens"][:2])
    ours = build_tokenizer(data, CONFIG, (5, 6))
    assert ours.encode("x")[0] == bos
    assert ours.encode("<|start|>x", parse_special=True).count(bos) == 1
    assert ours.eos_ids >= {end, 5, 6}
    assert build_tokenizer(data, CONFIG | {"add_bos_token": False}).encode("x")[0] != bos
    data["post_processor"] = None
    assert build_tokenizer(data, CONFIG).encode("x")[0] != bos
    ours = build_tokenizer(data, CONFIG | {"add_bos_token": True, "add_eos_token": True})
    assert (ours.encode("x")[0], ours.encode("x")[-1]) == (bos, end)


def without(data: dict[str, Any], *path: str) -> dict[str, Any]:
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return data


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda d: without(d, "model"), {}, "model is missing"),
        (lambda d: d["model"].update(type="WordPiece"), {}, "model type 'WordPiece' is not supported"),
        (lambda d: without(d, "model", "vocab"), {}, "model.vocab is missing"),
        (lambda d: d["model"]["vocab"].update(x=-1), {}, "'-1' is no token id"),
        (lambda d: d["model"]["vocab"].update(x=1 << 40), {}, "is no token id"),
        (lambda d: d["model"]["merges"].append(["zz", "qq"]), {}, "tokenizer.json: "),
        (lambda d: d.update(added_tokens=[{"id": 3}]), {}, "added_tokens must hold objects"),
        (lambda d: d["added_tokens"][0].update(lstrip=True), {}, "lstrip of '<|start|>' is not supported"),
        (lambda d: d.update(pre_tokenizer={"type": "Magic"}), {}, "tokenizer.json: "),
        (lambda d: None, {"bos_token": "<|no|>"}, "bos_token '<|no|>' is no token"),
        (lambda d: None, {"eos_token": 3}, "eos_token must be a string"),
        (lambda d: None, {"bos_token": "<|end|>"}, "adds '<|start|>', which is not the bos_token"),
        (lambda d: None, {"add_bos_token": "yes"}, "add_bos_token must be true or false"),
    ],
)
def test_refusals(change: Any, config: dict[str, Any], message: str) -> None:
    data = json.loads(byte_level().to_str())
    change(data)
    with pytest.raises(ModelError) as caught:
        build_tokenizer(data, CONFIG | config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
