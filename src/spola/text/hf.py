"""Tokenizer of a Hugging Face folder: ``tokenizer.json`` and ``tokenizer_config.json``, as parsed JSON.

The ``tokenizers`` library splits and merges as the file describes; special tokens, BOS and EOS, and the exact
bytes of tokens are spola's, so that a user's text never becomes a control token. Reads no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Library

from spola.core.errors import ModelError, RequestError
from spola.text.gguf_bpe import byte_level_bytes
from spola.text.gguf_spm import piece_bytes
from spola.text.piece import Piece
from spola.text.tokenizer import Tokenizer
from spola.text.vocab import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocab, end_ids, mark_ends

__all__ = ["build_tokenizer", "special_token"]

_MAX_TOKENS = 1 << 24
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class _Codec:
    """The library without the file's added tokens; ``inner`` is for pieces that do not begin the text."""

    def __init__(self, vocab: Vocab, opening: Library, inner: Library) -> None:
        self._vocab, self._opening, self._inner = vocab, opening, inner

    def encode(self, pieces: list[Piece]) -> list[list[int]]:
        return [self._encode(self._opening if piece.first else self._inner, piece.text) for piece in pieces]

    def token_bytes(self, token: int) -> bytes:
        make = byte_level_bytes if self._vocab.model == "gpt2" else piece_bytes
        return make(self._vocab, token)

    def _encode(self, library: Library, text: str) -> list[int]:
        try:
            return library.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            # The library panics on some tables only while it uses them, and a panic is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise RequestError(f"the tokenizer failed on this text: {_line(error)}") from None


def build_tokenizer(
    data: Mapping[str, Any], config: Mapping[str, Any], ends: Iterable[int] = ()
) -> Tokenizer:
    """A Tokenizer from ``tokenizer.json`` (``data``) and ``tokenizer_config.json`` (``config``).

    ``ends``: further ids that end a generation. BOS and EOS are added as ``add_bos_token`` and
    ``add_eos_token`` of the configuration say, else as the file's post-processor does. Raises ModelError
    naming the field at fault.
    """
    model = data.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("type", "BPE"), str):
        raise ModelError("tokenizer.json: model is missing")
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "Unigram"):
        raise ModelError(f"tokenizer.json: model type {kind[:40]!r} is not supported; BPE and Unigram are")
    added = _added(data)
    tokens, types = _tokens(model, added)
    ids: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if types[token] != UNUSED:
            ids.setdefault(text, token)
    mark_ends(ids, types)
    bos, eos = (_id(special_token(config, name), name, ids) for name in ("bos_token", "eos_token"))
    before, after = _post_processor(data.get("post_processor"))
    add_bos = _adds("add_bos_token", config, before, bos, tokens)
    add_eos = _adds("add_eos_token", config, after, eos, tokens)
    byte_level = any(part.get("type") == "ByteLevel" for part in _parts(data))
    vocab = Vocab(
        model="gpt2" if byte_level else "llama" if kind == "BPE" else "t5",
        pre=None,
        tokens=tokens,
        types=types,
        scores=(),
        merges=(),
        ids=ids,
        bos=bos,
        eos=eos,
        unk=None,
        ends=end_ids(ids, types, (eos, *ends)),
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=not byte_level and _strips_first_space(data.get("decoder")),
        remove_extra_whitespaces=False,
        charsmap=b"",
        strip_right=frozenset(token["id"] for token in added if token.get("rstrip")),
    )
    opening, later = _library(data), _inner(data)
    inner = opening if later == data else _library(later)  # building one takes seconds
    return Tokenizer(vocab, _Codec(vocab, opening, inner))


def special_token(config: Mapping[str, Any], name: str) -> str | None:
    """The text of ``bos_token`` and the like: a string, or an object with ``content``."""
    value = config.get(name)
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise ModelError(f"tokenizer_config.json: {name} must be a string")
    return value or None


def _added(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = data.get("added_tokens") or []
    if not isinstance(added, list):
        raise ModelError("tokenizer.json: added_tokens must be a list")
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
            raise ModelError("tokenizer.json: added_tokens must hold objects with content and id")
        _check_id(token.get("id"))
        for flag in ("lstrip", "single_word"):
            if token.get(flag):
                raise ModelError(f"tokenizer.json: {flag} of {token['content'][:80]!r} is not supported")
    return added


def _check_id(token: Any) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < _MAX_TOKENS:
        raise ModelError(f"tokenizer.json: {str(token)[:40]!r} is no token id")
    return token


def _tokens(model: Mapping[str, Any], added: list[dict[str, Any]]) -> tuple[list[str], bytearray]:
    """Texts and types by id; ids that nothing has are unused."""
    vocab = model.get("vocab")
    pairs: list[tuple[str, int]] = []
    if isinstance(vocab, Mapping):
        pairs = [(text, _check_id(token)) for text, token in vocab.items()]
    elif isinstance(vocab, list) and all(
        isinstance(row, list) and row and isinstance(row[0], str) for row in vocab
    ):
        pairs = [(row[0], token) for token, row in enumerate(vocab)]
    if not pairs:
        raise ModelError("tokenizer.json: model.vocab is missing or malformed")
    n = 1 + max(max(token for _, token in pairs), max((token["id"] for token in added), default=0))
    tokens, types = [""] * n, bytearray([UNUSED]) * n
    fallback = bool(model.get("byte_fallback"))
    for text, token in pairs:
        tokens[token] = text
        types[token] = BYTE if fallback and _BYTE_TOKEN.fullmatch(text) else NORMAL
    unk = model.get("unk_token")
    for text, token in pairs if isinstance(unk, str) else ():
        if text == unk:
            types[token] = UNKNOWN
    unk_id = model.get("unk_id")
    if isinstance(unk_id, int) and not isinstance(unk_id, bool) and 0 <= unk_id < n:
        types[unk_id] = UNKNOWN
    for row in added:
        tokens[row["id"]] = row["content"]
        types[row["id"]] = CONTROL if row.get("special") else USER_DEFINED
    for token, text in enumerate(tokens):
        if not text:
            tokens[token], types[token] = f"[EMPTY_{token}]", UNUSED
    return tokens, types


def _id(text: str | None, name: str, ids: Mapping[str, int]) -> int | None:
    if text is None:
        return None
    if text not in ids:
        raise ModelError(f"tokenizer_config.json: {name} {text[:80]!r} is no token of tokenizer.json")
    return ids[text]


def _post_processor(value: Any) -> tuple[str | None, str | None]:
    """The texts of the special tokens that the file puts before and after a single text."""
    if not isinstance(value, Mapping):
        return None, None
    if value.get("type") == "Sequence":
        found = [_post_processor(part) for part in value.get("processors") or ()]
        return next((f for f in found if f != (None, None)), (None, None))
    single = value.get("single")
    if value.get("type") != "TemplateProcessing" or not isinstance(single, list):
        return None, None
    names = [
        part["SpecialToken"].get("id") if isinstance(part, Mapping) and "SpecialToken" in part else None
        for part in single
    ]
    if None not in names or len(names) > 3 or (len(names) == 3 and names[1] is not None):
        raise ModelError("tokenizer.json: a post_processor with more than one token before or after the text")
    middle = names.index(None)
    before = names[middle - 1] if middle else None
    after = names[middle + 1] if middle + 1 < len(names) else None
    return before, after


def _adds(
    key: str, config: Mapping[str, Any], processor: str | None, token: int | None, tokens: list[str]
) -> bool:
    said = config.get(key)
    if said is not None and not isinstance(said, bool):
        raise ModelError(f"tokenizer_config.json: {key} must be true or false")
    if said is None and processor is not None and (token is None or tokens[token] != processor):
        name = key.removeprefix("add_")
        raise ModelError(
            f"tokenizer.json: its post_processor adds {processor[:80]!r}, which is not the {name}"
        )
    return token is not None and (processor is not None if said is None else said)


def _parts(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The pre-tokenizers and decoders, also those within sequences."""
    for key in ("pre_tokenizer", "decoder"):
        yield from _flat(data.get(key))


def _flat(part: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(part, Mapping):
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for key in ("pretokenizers", "decoders", "normalizers"):
        for inner in part.get(key) or ():
            if isinstance(inner, Mapping) and inner.get("type") != "Sequence":
                yield inner


def _strips_first_space(decoder: Any) -> bool:
    for part in _flat(decoder):
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start"):
            return True
        if part.get("type") == "Metaspace":
            return part.get("prepend_scheme", "always") != "never" and bool(
                part.get("add_prefix_space", True)
            )
    return False


def _inner(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same for a text that goes on: a space that goes before the first word only is not added."""

    def changed(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        if part.get("type") == "Sequence":
            return {**part, "pretokenizers": [changed(p) for p in part.get("pretokenizers") or ()]}
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            return {**part, "prepend_scheme": "never"}
        return part

    return {**data, "pre_tokenizer": changed(data.get("pre_tokenizer"))}


def _library(data: Mapping[str, Any]) -> Library:
    plain = {**data, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        return Library.from_str(json.dumps(plain, ensure_ascii=False))
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"tokenizer.json: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
