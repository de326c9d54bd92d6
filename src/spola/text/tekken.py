"""Mistral's ``tekken.json`` as the ``tokenizer.json`` that says the same, for folders that have only that.

The file (format of the ``mistral-common`` library) holds the bytes of each token by rank and the expression
that cuts texts into words; merges follow from the ranks. Ids of special tokens come first. Reads no file and
builds no tokenizer.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from spola.core.errors import ModelError
from spola.text.gguf_bpe import byte_level_text

__all__ = ["tekken_config", "tokenizer_json_of"]

_VERSIONS = ("v3", "v7", "v11", "v13", "v15")
_MAX_TOKENS = 1 << 22
# What files of versions up to v7 leave out.
_UNSAID = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)


def tekken_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer_config.json`` as it would be beside a ``tekken.json``; ``settings`` are what is there."""
    said = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False}
    return said | dict(settings)


def tokenizer_json_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer.json`` for ``data``, a parsed ``tekken.json``.

    Raises ModelError naming the field at fault.
    """
    config = data.get("config")
    if not isinstance(config, Mapping):
        raise ModelError("tekken.json: config is missing or no object")
    version, pattern = config.get("version"), config.get("pattern")
    if version not in _VERSIONS:
        known = ", ".join(_VERSIONS)
        raise ModelError(
            f"tekken.json: config.version {str(version)[:40]!r} is not known; known are: {known}"
        )
    if not isinstance(pattern, str) or not pattern:
        raise ModelError("tekken.json: config.pattern is missing or no string")
    n_special = _count(config, "default_num_special_tokens")
    n = _count(config, "default_vocab_size") - n_special
    special = _special(data, version, n_special)
    ranks = _ranks(data.get("vocab"), n)
    texts = {token: byte_level_text(token) for token in ranks}
    return {
        "model": {
            "type": "BPE",
            "vocab": {texts[token]: rank + n_special for token, rank in ranks.items()},
            "merges": [[texts[left], texts[right]] for left, right in _merges(ranks)],
            "ignore_merges": True,
        },
        "added_tokens": [{"id": i, "content": text, "special": True} for i, text in enumerate(special)],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TOKENS:
        raise ModelError(f"tekken.json: config.{key} must be an integer from 1 to {_MAX_TOKENS}")
    return value


def _special(data: Mapping[str, Any], version: str, n: int) -> list[str]:
    """The texts of ids 0 to n - 1; those that the file does not name get one that nobody writes."""
    rows = data.get("special_tokens")
    if rows is None:
        if version not in ("v3", "v7"):
            raise ModelError(f"tekken.json: special_tokens is missing, which version {version} must have")
        rows = [{"rank": i, "token_str": text} for i, text in enumerate(_UNSAID)]
    if not isinstance(rows, list) or len(rows) > n:
        raise ModelError(f"tekken.json: special_tokens must be a list of at most {n} entries")
    texts = []
    for i, row in enumerate(rows):
        text = row.get("token_str") if isinstance(row, Mapping) else None
        if not isinstance(text, str) or not text or row.get("rank") != i:
            raise ModelError(f"tekken.json: special_tokens[{i}] must have rank {i} and a token_str")
        texts.append(text)
    texts += [f"<SPECIAL_{i}>" for i in range(len(rows), n)]
    if len(set(texts)) < n:
        raise ModelError("tekken.json: special_tokens holds a text twice")
    return texts


def _ranks(rows: Any, n: int) -> dict[bytes, int]:
    """The bytes of the first ``n`` tokens; the first 256 must be the single bytes."""
    if not isinstance(rows, list) or not 256 <= n <= len(rows):
        raise ModelError(
            f"tekken.json: vocab must be a list of at least {max(n, 256)} tokens, of which 256 are the bytes"
        )
    out: dict[bytes, int] = {}
    for i, row in enumerate(rows[:n]):
        if (
            not isinstance(row, Mapping)
            or row.get("rank") != i
            or not isinstance(row.get("token_bytes"), str)
        ):
            raise ModelError(f"tekken.json: vocab[{i}] must have rank {i} and token_bytes")
        try:
            token = base64.b64decode(row["token_bytes"], validate=True)
        except (binascii.Error, ValueError):
            raise ModelError(f"tekken.json: vocab[{i}].token_bytes is no base64") from None
        if not token or token in out or (i < 256 and token != bytes([i])):
            raise ModelError(f"tekken.json: vocab[{i}] is empty, there twice, or not byte {i}")
        out[token] = i
    return out


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every way to make a token of two others, in the order of the ranks of what is made."""
    out: list[tuple[bytes, bytes]] = []
    for token in ranks:
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
        out += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]])) if len(pairs) > 1 else pairs
    return out
