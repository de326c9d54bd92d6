"""SentencePiece's ``tokenizer.model``: its protobuf, field by field, as the keys that GGUF has for the same.

For folders that have no ``tokenizer.json``. Knows the few fields that a tokenizer needs (``ModelProto`` of
sentencepiece_model.proto); every length is checked. Builds no tokenizer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from spola.core.errors import ModelError

__all__ = ["gguf_keys_of"]

_PREFIX = "tokenizer.ggml."
_KINDS = {1: "t5", 2: "llama"}  # TrainerSpec.ModelType: UNIGRAM, BPE
_TYPES = range(1, 7)  # SentencePiece.Type; GGUF took the same numbers
_MAX_PIECES = 1 << 24


def gguf_keys_of(data: bytes, config: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer.ggml.*`` of the model in ``data``, with the tokens that ``tokenizer_config.json`` adds.

    Raises ModelError for bytes that are no such model, and for kinds that are not supported.
    """
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(_bytes(value)))
            tokens.append(_text(piece.get(1, b"")))
            score = piece.get(2, b"")
            scores.append(
                struct.unpack("<f", score)[0] if isinstance(score, bytes) and len(score) == 4 else 0.0
            )
            types.append(int(piece.get(3, 1)))
            if len(tokens) > _MAX_PIECES or types[-1] not in _TYPES:
                raise ModelError(f"tokenizer.model: piece {len(tokens) - 1} is not valid")
        elif field == 2:
            trainer = dict(_fields(_bytes(value)))
        elif field == 3:
            normalizer = dict(_fields(_bytes(value)))
    kind = _KINDS.get(trainer.get(3, 1))
    if not tokens or kind is None:
        raise ModelError("tokenizer.model: is no SentencePiece model of kind BPE or unigram")
    charsmap = _bytes(normalizer.get(2, b""))
    if charsmap and kind == "llama":
        raise ModelError("tokenizer.model: a BPE with a normalizer of its own is not supported")
    keys: dict[str, Any] = {
        "model": kind,
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "add_space_prefix": bool(normalizer.get(3, 1)),
        "remove_extra_whitespaces": bool(normalizer.get(4, 1)) and kind == "t5",
        "unknown_token_id": _signed(trainer.get(40, 0)),
        "bos_token_id": _signed(trainer.get(41, 1)),
        "eos_token_id": _signed(trainer.get(42, 2)),
    }
    if charsmap:
        keys["precompiled_charsmap"] = charsmap
    _add_tokens(keys, config)
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(config.get(name), bool):
            keys[name] = config[name]
    return {_PREFIX + name: value for name, value in keys.items()}


def _add_tokens(keys: dict[str, Any], config: Mapping[str, Any]) -> None:
    """``added_tokens_decoder``: further tokens, and types of those that are there."""
    added = config.get("added_tokens_decoder") or {}
    if not isinstance(added, Mapping):
        raise ModelError("tokenizer_config.json: added_tokens_decoder must be an object")
    tokens, types, scores = keys["tokens"], keys["token_type"], keys["scores"]
    for key, row in sorted(added.items(), key=lambda item: (len(item[0]), item[0])):
        if not key.isascii() or not key.isdigit() or not isinstance(row, Mapping):
            raise ModelError("tokenizer_config.json: added_tokens_decoder must map token ids to objects")
        token, text = int(key), row.get("content")
        if token > len(tokens) or not isinstance(text, str):
            raise ModelError(f"tokenizer_config.json: added token {key[:20]} leaves a gap or has no content")
        if token == len(tokens):
            tokens.append(text)
            types.append(1)
            scores.append(0.0)
        if types[token] != 2:
            tokens[token], types[token] = text, 3 if row.get("special") else 4


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of one message; fixed32 and length-delimited ones as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case _:
                raise _malformed()
        if size > len(data) - at:
            raise _malformed()
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise _malformed()


def _signed(value: Any) -> int:
    """An int32 that protobuf wrote as 64 bits."""
    number = int(value) if isinstance(value, int) else 0
    return number - (1 << 64) if number >> 63 else number


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _malformed()
    return value


def _text(value: Any) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise _malformed() from None


def _malformed() -> ModelError:
    return ModelError("tokenizer.model: is no SentencePiece model, or cut short")
