"""The vocabulary as GGUF metadata states it: token texts, types, scores, special ids, flags.

``read_vocab`` checks a plain dict of ``tokenizer.ggml.*`` keys and fills in the defaults that GGUF leaves
to the reader. It builds no tokenizer and reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spola.core.errors import ModelError
from spola.text.pretokenize import Pre, find_pre

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Vocab",
    "end_ids",
    "mark_ends",
    "read_vocab",
]

# Token types of GGUF (tokenizer.ggml.token_type).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_PREFIX = "tokenizer.ggml."
_MODELS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE", "t5": "SentencePiece unigram"}
_MAX_TOKENS = 1 << 24  # far above any vocabulary; ids must fit int32 with room
_ABSENT = (-1, 0xFFFFFFFF)  # how converters write "none" into an unsigned field

# Texts that end a turn or a document in models that are in use. A file that marks one of them as an
# ordinary token is wrong about it, so they count as control tokens whatever the file says.
_END_MARKERS = frozenset(
    (
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<|call|>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "[EOT]",
        "<EOT>",
    )
)
_ILL_FORMED = re.compile("[\ud800-\udfff]")
_PADDING = re.compile(r"\[PAD[0-9]+\]")


@dataclass(frozen=True, slots=True)
class Vocab:
    """Checked tokenizer metadata. ``types[i]`` and ``tokens[i]`` belong to id i."""

    model: str  # "gpt2", "llama" or "t5"
    pre: Pre | None  # for gpt2 only
    tokens: list[str]
    types: bytearray
    scores: Sequence[float]  # empty for gpt2, and once built
    merges: Sequence[str]  # empty unless gpt2, and once built
    ids: dict[str, int]  # text -> the first id that has it
    bos: int | None
    eos: int | None
    unk: int | None
    ends: frozenset[int]  # every id that ends a generation
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    charsmap: bytes  # SentencePiece's compiled normalizer, for t5
    strip_right: frozenset[int]  # special tokens that swallow the whitespace after them

    def built(self) -> Vocab:
        """The same without the tables from which only the codec is built."""
        return replace(self, scores=(), merges=())

    def is_special(self, token: int) -> bool:
        """Whether the token carries structure, not text."""
        return self.types[token] in (CONTROL, UNKNOWN)

    def is_padding(self, token: int) -> bool:
        """Whether the entry only fills the table up to a round size."""
        return self.types[token] == UNUSED and _PADDING.fullmatch(self.tokens[token]) is not None


def read_vocab(metadata: Mapping[str, Any]) -> Vocab:
    """Check ``tokenizer.ggml.*`` of ``metadata`` (GGUF, docs/gguf.md of the format).

    Raises ModelError naming the key at fault, the model or the pre-tokenizer that is not supported.
    """
    model = _get(metadata, "model", str, None)
    if model is None:
        raise ModelError(f"{_PREFIX}model is missing: the file has no tokenizer")
    if model not in _MODELS:
        known = ", ".join(f"{name} ({what})" for name, what in _MODELS.items())
        raise ModelError(f"{_PREFIX}model is {model!r}, which is not supported; known are: {known}")
    tokens = _tokens(metadata)
    types = _types(metadata, len(tokens))
    pre = find_pre(_get(metadata, "pre", str, "default")) if model == "gpt2" else None
    ids: dict[str, int] = {}
    for i, text in enumerate(tokens):
        ids.setdefault(text, i)
    for text in [text for text in ids if not text.isascii() and _ILL_FORMED.search(text)]:
        del ids[text]  # bytes that are no UTF-8: nothing that is encoded can contain them
    mark_ends(ids, types)
    spm = model == "llama"
    special = {
        name: _special(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown")
    }
    defaults = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "t5": {"eos": 1, "unknown": 2}}.get(model, {})
    for name, token in defaults.items():
        if f"{_PREFIX}{name}_token_id" not in metadata and token < len(tokens):
            special[name] = token
    add_bos = _get(metadata, "add_bos_token", bool, None)
    if add_bos and special["bos"] is None:
        raise ModelError(f"{_PREFIX}add_bos_token is true but {_PREFIX}bos_token_id is not set")
    if add_bos is None:
        add_bos = special["bos"] is not None and (spm or (pre is not None and pre.add_bos))
    add_eos = _get(metadata, "add_eos_token", bool, model == "t5")
    if add_eos and special["eos"] is None:
        raise ModelError(f"{_PREFIX}add_eos_token is true but {_PREFIX}eos_token_id is not set")
    return Vocab(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=_scores(metadata, len(tokens)) if model != "gpt2" else (),
        merges=_strings(metadata, "merges") if model == "gpt2" else (),
        ids=ids,
        bos=special["bos"],
        eos=special["eos"],
        unk=special["unknown"],
        ends=end_ids(ids, types, (special["eos"], special["eot"], special["eom"])),
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=model != "gpt2" and _get(metadata, "add_space_prefix", bool, True),
        remove_extra_whitespaces=_get(metadata, "remove_extra_whitespaces", bool, False),
        charsmap=_charsmap(metadata),
        strip_right=_strip_right(metadata, tokens, types),
    )


def _get(metadata: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = metadata.get(_PREFIX + name, default)
    if value is not default and not isinstance(value, kind):
        raise ModelError(f"{_PREFIX}{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _array(metadata: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise ModelError(f"{_PREFIX}{name} is missing")
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise ModelError(f"{_PREFIX}{name} must be an array, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def _strings(metadata: Mapping[str, Any], name: str) -> Sequence[str]:
    value = _array(metadata, name)
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise ModelError(f"{_PREFIX}{name}[{i}] must be a string, not {type(item).__name__}")
    return value


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = list(_strings(metadata, "tokens"))
    if not tokens or len(tokens) > _MAX_TOKENS:
        raise ModelError(f"{_PREFIX}tokens has {len(tokens)} entries; 1 to {_MAX_TOKENS} are possible")
    for i, text in enumerate(tokens):
        if not text:
            tokens[i] = f"[EMPTY_{i}]"  # an empty text could never be matched nor printed
    return tokens


def _types(metadata: Mapping[str, Any], n: int) -> bytearray:
    if _PREFIX + "token_type" not in metadata:
        return bytearray([NORMAL]) * n
    types = _array(metadata, "token_type")
    if len(types) != n:
        raise ModelError(f"{_PREFIX}token_type has {len(types)} entries, {_PREFIX}tokens has {n}")
    try:
        return bytearray(types)
    except (TypeError, ValueError):
        raise ModelError(f"{_PREFIX}token_type must hold small integers") from None


def _scores(metadata: Mapping[str, Any], n: int) -> Sequence[float]:
    scores = _array(metadata, "scores")
    if len(scores) != n:
        raise ModelError(f"{_PREFIX}scores has {len(scores)} entries, {_PREFIX}tokens has {n}")
    for i, score in enumerate(scores):
        if not isinstance(score, (int, float)) or score != score:
            raise ModelError(f"{_PREFIX}scores[{i}] must be a number, not {score!r}")
    return scores


def _special(metadata: Mapping[str, Any], name: str, n: int) -> int | None:
    key = f"{name}_token_id"
    token = _get(metadata, key, int, None)
    if token is None or token in _ABSENT:
        return None
    if isinstance(token, bool) or not 0 <= token < n:
        raise ModelError(f"{_PREFIX}{key} is {token}, outside the vocabulary of {n} tokens")
    return int(token)


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    if _PREFIX + "precompiled_charsmap" not in metadata:
        return b""
    value = metadata[_PREFIX + "precompiled_charsmap"]
    try:
        return bytes(value) if isinstance(value, bytes) else bytes(v & 0xFF for v in value)
    except (TypeError, ValueError):
        raise ModelError(f"{_PREFIX}precompiled_charsmap must be an array of bytes") from None


def mark_ends(ids: Mapping[str, int], types: bytearray) -> None:
    """Make the known texts that end a turn control tokens, whatever the file says."""
    for text in _END_MARKERS:
        token = ids.get(text)
        if token is not None and types[token] in (NORMAL, USER_DEFINED):
            types[token] = CONTROL


def end_ids(ids: Mapping[str, int], types: bytearray, named: tuple[int | None, ...]) -> frozenset[int]:
    """The ids that end a generation: the named ones and every known marker that is a control token."""
    ends = {ids[text] for text in _END_MARKERS if text in ids and types[ids[text]] == CONTROL}
    # In the harmony format <|end|> only closes one message of a turn; <|return|> and <|call|> end it.
    if "<|return|>" in ids and "<|call|>" in ids:
        ends.discard(ids.get("<|end|>", -1))
    return frozenset(ends | {token for token in named if token is not None})


def _strip_right(metadata: Mapping[str, Any], tokens: list[str], types: bytearray) -> frozenset[int]:
    """GGUF has no field for this; Phi-3 is the family in use whose special tokens need it."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kept = ("<unk>", "<s>", "<|endoftext|>")
    special = (CONTROL, USER_DEFINED, UNKNOWN)
    return frozenset(
        i for i, text in enumerate(tokens) if (types[i] in special and text not in kept) or text == "</s>"
    )
