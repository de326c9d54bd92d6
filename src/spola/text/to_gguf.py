"""A folder's tokenizer as ``tokenizer.ggml.*`` keys: byte-level BPE, and BPE in the manner of SentencePiece.

GGUF names a pre-tokenizer instead of describing it: the name is found by comparing what both cut out of a
text made for that, and the finished keys are read back and compared on the same text. Reads no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Library

from spola.core.errors import ModelError
from spola.text.pretokenize import PRE, Pre
from spola.text.tokenizer import Tokenizer
from spola.text.vocab import NORMAL, UNUSED, Vocab

__all__ = ["PROBE", "check_same_ids", "gguf_tokenizer"]

_PREFIX = "tokenizer.ggml."

# Contractions, digits, spaces, scripts, marks and symbols: whatever pre-tokenizers are known to differ in.
PROBE = (
    "Hello, World! I'll say it's 12345 or 3.14; WE'VE they're\n\n\n\tdef f(x): return x**2  # ok\r\n"
    "  leading and   many    spaces \u3000 ideographic, \u00e9t\u00e9 cafe\u0301 na\u00efve "
    "\u4f60\u597d\u4e16\u754c \u3053\u3093 \u30ab\u30bf \ud55c\uae00 \u0416\u0438 \u0627\u0644 "
    "\u0e44\u0e17\u0e22 "
    "\u0939\u093f\u0928 \u0663\u0664\u0665 \u00bd \ufb01 x\u00b2 "
    "CamelCaseWord snake_case A1b2C3 100000 1,000,000 "
    "\U0001f680\U0001f468\u200d\U0001f469 ... !!! ?!? -- == => <= && || /* */ // @#$%^&*()[]{} "
    "\u201cq\u201d 'S 'Ll \u2019s "
    "a/b\\c http://x.y/z?q=1 \n \n  \n x\ty"
)


def gguf_tokenizer(
    tokenizer: Tokenizer, data: Mapping[str, Any] | None, sentencepiece: Mapping[str, Any] | None, rows: int
) -> dict[str, Any]:
    """The keys for ``tokenizer``, which was made of ``data`` (``tokenizer.json``) or of ``sentencepiece``
    keys.

    The table is filled up to the model's ``rows``. Raises ModelError naming what GGUF has no words for.
    """
    if sentencepiece is not None:
        keys = {name.removeprefix(_PREFIX): value for name, value in sentencepiece.items()}
    elif data is None:
        raise ModelError("the tokenizer has no tokenizer.json and no tokenizer.model")
    elif tokenizer.vocab.model == "gpt2":
        keys = _byte_level(tokenizer.vocab, data)
    elif tokenizer.vocab.model == "llama":
        keys = _sentencepiece(tokenizer.vocab, data)
    else:
        raise ModelError(
            "tokenizer.json: a unigram tokenizer cannot be written to GGUF without tokenizer.model"
        )
    _special(keys, tokenizer.vocab)
    _fill(keys, rows)
    out = {_PREFIX + name: value for name, value in keys.items()}
    check_same_ids(tokenizer, Tokenizer.from_gguf(out))
    return out


def check_same_ids(first: Tokenizer, second: Tokenizer, text: str = PROBE) -> None:
    """Raise ModelError at the first part of ``text`` that the two cut into other ids."""
    for part in [text, *text.split("\n"), *text.split(" ")]:
        if part and first.encode(part, add_bos=False) != second.encode(part, add_bos=False):
            raise ModelError(f"the tokenizer cannot be written to GGUF: {part[:60]!r} would get other ids")


def _byte_level(vocab: Vocab, data: Mapping[str, Any]) -> dict[str, Any]:
    model = data["model"]
    return {
        "model": "gpt2",
        "pre": _find_pre(data),
        "tokens": list(vocab.tokens),
        "token_type": list(vocab.types),
        "merges": [_merge(pair) for pair in model.get("merges") or ()],
    }


def _merge(pair: Any) -> str:
    text = pair if isinstance(pair, str) else " ".join(pair)
    if text.count(" ") != 1:
        raise ModelError(f"tokenizer.json: the merge {str(pair)[:60]!r} cannot be written to GGUF")
    return text


def _sentencepiece(vocab: Vocab, data: Mapping[str, Any]) -> dict[str, Any]:
    """Scores from the order of merges: a piece is preferred as early as the first merge that makes it."""
    scores = [-1e6] * len(vocab.tokens)
    for rank, pair in enumerate(data["model"].get("merges") or ()):
        token = vocab.ids.get("".join(pair.split(" ", 1) if isinstance(pair, str) else pair))
        if token is not None and scores[token] == -1e6:
            scores[token] = float(-rank)
    return {
        "model": "llama",
        "pre": "default",
        "tokens": list(vocab.tokens),
        "scores": [0.0 if t != NORMAL else s for s, t in zip(scores, vocab.types, strict=True)],
        "token_type": list(vocab.types),
        "add_space_prefix": vocab.add_space_prefix,
    }


def _special(keys: dict[str, Any], vocab: Vocab) -> None:
    if vocab.bos is not None:
        keys["bos_token_id"] = vocab.bos
    if vocab.eos is not None:
        keys["eos_token_id"] = vocab.eos
    others = sorted(vocab.ends - {vocab.eos})
    if others:
        keys["eot_token_id"] = others[0]
    keys["add_bos_token"] = vocab.add_bos
    keys["add_eos_token"] = vocab.add_eos


def _fill(keys: dict[str, Any], rows: int) -> None:
    n = len(keys["tokens"])
    if n > rows:
        raise ModelError(f"the tokenizer has {n} tokens, but the embedding only {rows} rows")
    keys["tokens"] += [f"[PAD{i}]" for i in range(n, rows)]
    keys["token_type"] += [UNUSED] * (rows - n)
    if "scores" in keys:
        keys["scores"] += [-1e6] * (rows - n)


def _find_pre(data: Mapping[str, Any]) -> str:
    """The name whose cuts are those of the file on the probe."""
    plain: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "post_processor": None,
    }
    parts = {key: data.get(key) for key in ("normalizer", "pre_tokenizer", "decoder", "model")}
    library = Library.from_str(json.dumps(plain | parts, ensure_ascii=False))
    ignore_merges = bool(data["model"].get("ignore_merges"))
    nfc = library.normalizer is not None
    text = library.normalizer.normalize_str(PROBE) if library.normalizer is not None else PROBE
    cuts = [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)]
    for name, pre in PRE.items():
        if (pre.ignore_merges, pre.nfc) == (ignore_merges, nfc) and _cuts(pre, text) == cuts:
            return name
    for name, pre in PRE.items():  # merging over a word that is a token makes no difference to most
        if pre.nfc == nfc and _cuts(pre, text) == cuts:
            return name
    raise ModelError("tokenizer.json: its pre-tokenizer is none that GGUF has a name for")


def _cuts(pre: Pre, text: str) -> list[str]:
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return [word for word, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]
