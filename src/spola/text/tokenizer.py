"""Tokenizer: text to ids and ids to exact bytes, made of GGUF metadata here, of a folder by ``text.hf``.

Merging is the ``tokenizers`` library's; here are the special tokens, the beginning and end of the text,
SentencePiece's spaces, and what cannot be encoded. Streams of ids are ``text.stream``'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from spola.core.errors import RequestError
from spola.text.gguf_bpe import BpeCodec
from spola.text.gguf_spm import SpmCodec, UnigramCodec
from spola.text.piece import Piece
from spola.text.special import SpecialScanner
from spola.text.stream import Detokenizer
from spola.text.vocab import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Vocab, read_vocab

__all__ = ["Tokenizer"]


class _Codec(Protocol):
    """One kind of tokenizer, for text without special tokens."""

    def encode(self, pieces: list[Piece]) -> list[list[int]]: ...
    def token_bytes(self, token: int) -> bytes: ...


_CODECS: dict[str, Callable[[Vocab], _Codec]] = {"gpt2": BpeCodec, "llama": SpmCodec, "t5": UnigramCodec}


class Tokenizer:
    """Encodes and decodes for one model. Immutable after construction; threads may share it.

    Rules that differ between programs, and how they are decided here:

    - BOS and EOS are added as the file says (``add_bos_token``, ``add_eos_token``), else as the kind of
      tokenizer does. BOS is never doubled: when ``parse_special`` finds it at the start of the text, none
      is added.
    - Texts of control tokens become those tokens only with ``parse_special``; user-defined tokens always.
    - A lone surrogate is refused. A byte that has no token (some byte-level vocabularies lack a few) is
      left out, as in llama.cpp, and nothing merges across the gap; it never becomes another token.
    """

    def __init__(self, vocab: Vocab, codec: _Codec) -> None:
        self.vocab = vocab
        self._codec = codec
        types, tokens = vocab.types, vocab.tokens
        plain = {t: i for t, i in vocab.ids.items() if types[i] == USER_DEFINED}
        special = {t: i for t, i in vocab.ids.items() if types[i] in (CONTROL, UNKNOWN)}
        self._plain_scanner = SpecialScanner(plain, vocab.strip_right)
        self._special_scanner = SpecialScanner(plain | special, vocab.strip_right)
        self._control_scanner = SpecialScanner(special)
        self._bytes: list[bytes | None] = [None] * len(tokens)
        self._texts: list[bytes | None] = [None] * len(tokens)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], ends: Iterable[int] = ()) -> Tokenizer:
        """Build from ``tokenizer.ggml.*`` of ``metadata``; ``ends`` are further ids that end a generation.

        Raises ModelError naming what is wrong.
        """
        vocab = read_vocab(metadata)
        vocab = replace(vocab, ends=vocab.ends | frozenset(ends))
        return cls(vocab.built(), _CODECS[vocab.model](vocab))

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer's table; the model may have more rows, which are never valid ids."""
        return len(self.vocab.tokens)

    @property
    def bos_id(self) -> int | None:
        return self.vocab.bos

    @property
    def eos_id(self) -> int | None:
        return self.vocab.eos

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation: end of text, of turn, of message, and known markers."""
        return self.vocab.ends

    @property
    def padding_ids(self) -> frozenset[int]:
        """Entries that only fill the table up to a round size; no text has them, none should be sampled."""
        return frozenset(i for i in range(len(self.vocab.tokens)) if self.vocab.is_padding(i))

    def encode(
        self,
        text: str,
        *,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        parse_special: bool = False,
        drop: str = "",
    ) -> list[int]:
        """The ids of ``text``. ``add_bos`` and ``add_eos``: None follows the model.

        ``drop`` is taken out of the text after special tokens have been looked for, so that it can keep a
        text from being read as one.

        Raises RequestError for text that is not valid Unicode.
        """
        _check_unicode(text)
        scanner = self._special_scanner if parse_special else self._plain_scanner
        parts = scanner.split(text)
        pieces = [
            Piece(
                part.replace(drop, "") if drop else part,
                at == 0 or not isinstance(parts[at - 1], str),
                at == 0,
            )
            for at, part in enumerate(parts)
            if isinstance(part, str)
        ]
        encoded = iter(self._codec.encode(pieces) if pieces else ())
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                ids += next(encoded)
            else:
                ids.append(part)
        bos, eos = self.vocab.bos, self.vocab.eos
        if (self.vocab.add_bos if add_bos is None else add_bos) and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        if (self.vocab.add_eos if add_eos is None else add_eos) and eos is not None and ids[-1:] != [eos]:
            ids.append(eos)
        return ids

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.vocab.tokens), default=1) or 1

    def least_tokens(self, text: str) -> int:
        """A lower bound, found at once, of how many ids ``text`` has: no token holds more than the longest.

        Holds for text that the tokenizer keeps as it is; what it would drop is counted.
        """
        return -(-len(text) // self._longest)

    def break_special(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` inside every text of a control token, so that none is read there.

        ``encode`` with ``drop=mark`` takes the marks out again. In linear time.
        """
        return self._control_scanner.broken(text, mark)

    @property
    def strips_first_space(self) -> bool:
        """Whether encoding put a space before the text that decoding takes off again."""
        return self.vocab.add_space_prefix

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of ``token``; a control token's own text. Raises RequestError for a foreign id."""
        if type(token) is not int or not 0 <= token < len(self._bytes):
            self.check_ids((token,))
        found = self._bytes[token]
        if found is None:
            found = b"" if self.vocab.types[token] == UNUSED else self._codec.token_bytes(token)
            self._bytes[token] = found
        return found

    def text_bytes(self, token: int) -> bytes:
        """``token_bytes``, but nothing for a special token. Once for every token of every stream."""
        if type(token) is not int or not 0 <= token < len(self._texts):
            self.check_ids((token,))
        found = self._texts[token]
        if found is None:
            found = b"" if self.is_special(token) else self.token_bytes(token)
            self._texts[token] = found
        return found

    def token_text(self, token: int) -> str:
        """``token_bytes`` for people: bytes that are no text by themselves are shown as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def is_special(self, token: int) -> bool:
        """Whether ``token`` carries structure, not text (control tokens, the unknown token)."""
        if type(token) is not int or not 0 <= token < len(self._bytes):
            self.check_ids((token,))
        return self.vocab.is_special(token)

    def check_ids(self, ids: Iterable[int], param: str | None = None) -> None:
        """Raise RequestError naming the first id that is not a token of this tokenizer."""
        n = len(self.vocab.tokens)
        for i, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < n:
                where = f"{param}[{i}]: " if param else ""
                raise RequestError(f"{where}{token!r} is no token id; ids go from 0 to {n - 1}", param=param)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``, taken as a whole text from its start."""
        stream = Detokenizer(self, skip_special=skip_special, start=True)
        return stream.push(ids) + stream.finish()


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RequestError(
            f"the text is not valid Unicode: lone surrogate U+{code:04X} at character {error.start}"
        ) from None
