"""Byte-level BPE from GGUF metadata (``tokenizer.ggml.model`` = gpt2), on the ``tokenizers`` library.

Builds the library's tokenizer and the exact bytes of each token. Special tokens are cut out of the text
before it comes here.
"""

from __future__ import annotations

import re

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from spola.core.errors import ModelError
from spola.text.piece import Piece
from spola.text.vocab import BYTE, NORMAL, Vocab

__all__ = ["BpeCodec", "byte_level_bytes", "byte_level_text"]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: Latin-1's visible characters are themselves, the rest follow U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


_ALPHABET = _byte_alphabet()
_LETTERS = {byte: char for char, byte in _ALPHABET.items()}


class BpeCodec:
    """Byte-level BPE for plain text without special tokens.

    Bytes that have no token of their own are left out of the ids and never merged over, as in
    llama.cpp. Raises ModelError when the merges do not fit the tokens.
    """

    def __init__(self, vocab: Vocab) -> None:
        pre = vocab.pre
        assert pre is not None
        self._vocab = vocab.built()
        merges = [_pair(i, merge) for i, merge in enumerate(vocab.merges)]
        tokenizer = Tokenizer(_bpe(vocab, merges, pre.ignore_merges))
        if pre.nfc:
            tokenizer.normalizer = normalizers.NFC()
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        missing = "".join(re.escape(char) for char in _ALPHABET if char not in vocab.ids)
        if missing:
            steps.append(pre_tokenizers.Split(Regex(f"[{missing}]"), "removed"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self._library = tokenizer

    def encode(self, pieces: list[Piece]) -> list[list[int]]:
        """The ids of each piece of text; whether it opens the text makes no difference here."""
        texts = [piece.text for piece in pieces]
        return [e.ids for e in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def token_bytes(self, token: int) -> bytes:
        return byte_level_bytes(self._vocab, token)


def byte_level_bytes(vocab: Vocab, token: int) -> bytes:
    """The bytes that ``token`` stands for; the text itself for tokens that are not byte-level."""
    text = vocab.tokens[token]
    if vocab.types[token] not in (NORMAL, BYTE):
        return text.encode("utf-8", "surrogateescape")
    out = bytearray()
    for char in text:
        byte = _ALPHABET.get(char)
        if byte is None:
            out += char.encode("utf-8", "surrogateescape")
        else:
            out.append(byte)
    return bytes(out)


def byte_level_text(token: bytes) -> str:
    """``token`` in the printable stand-ins, as byte-level vocabularies spell it."""
    return "".join(_LETTERS[byte] for byte in token)


def _pair(index: int, merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)  # a token may itself start with a space
    if cut < 0:
        raise ModelError(f"tokenizer.ggml.merges[{index}] is {merge!r}, not two tokens and a space")
    return merge[:cut], merge[cut + 1 :]


def _bpe(vocab: Vocab, merges: list[tuple[str, str]], ignore_merges: bool) -> models.BPE:
    try:
        return models.BPE(vocab=vocab.ids, merges=merges, ignore_merges=ignore_merges)
    except Exception as error:
        # The library names the first merge that is wrong; find out which one for the message.
        ids = vocab.ids
        for i, (left, right) in enumerate(merges):
            if left not in ids or right not in ids or left + right not in ids:
                raise ModelError(
                    f"tokenizer.ggml.merges[{i}] joins {left!r} and {right!r}, "
                    "which are not all tokens of the vocabulary"
                ) from None
        raise ModelError(f"tokenizer.ggml.merges cannot be used: {error}") from None
