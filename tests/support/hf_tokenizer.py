"""Tokenizers of made folders: ``tokenizer.json`` and ``tokenizer_config.json`` as libraries write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.tiny import SPECIALS, byte_letters

__all__ = ["folder_tokenizer", "write_tokenizer"]


def folder_tokenizer(folder: Path, vocab: int, **config: Any) -> None:
    """A byte-level tokenizer: three special tokens, as many bytes as ``vocab`` leaves room, and one merge.

    The merge, of two digits, is never made where digits stand alone: ids tell another way of cutting.
    """
    tokens = [*[*SPECIALS, *byte_letters()][: vocab - 1], "12"]
    prefix = "tokenizer.ggml."
    types = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))
    metadata = {f"{prefix}tokens": tokens, f"{prefix}token_type": types, f"{prefix}merges": ["1 2"]}
    write_tokenizer(folder, metadata, **config)


def write_tokenizer(folder: Path, metadata: dict[str, Any], **config: Any) -> None:
    """``tokenizer.json`` of a tiny model's byte-level vocabulary, as the library would write it."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    special = [i for i, kind in enumerate(types) if kind == 3]
    split = {"type": "Digits", "individual_digits": True}
    data = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for i in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    settings = {"bos_token": tokens[1], "eos_token": tokens[2]} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
