"""SentencePiece tokenizers from GGUF metadata: BPE by scores (model ``llama``) and unigram (``t5``).

GGUF stores SentencePiece's pieces and scores, and no merges. A BPE of that kind always joins the pair whose
joined piece has the best score; as a merge table, that is every way to cut a piece into two pieces, ordered
by the score of the whole. Special tokens are cut out of the text before it comes here.
"""

from __future__ import annotations

import hashlib
from array import array

from tokenizers import Tokenizer, models, normalizers

from spola.core.errors import ModelError, RequestError
from spola.text import merges_cache
from spola.text.piece import Piece
from spola.text.vocab import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocab

__all__ = ["SpmCodec", "UnigramCodec", "derive_merges", "piece_bytes"]

SPACE = "\u2581"
_MAX_SQUARES = 1 << 31  # sum of squared lengths, which deriving grows with; Gemma's is a hundredth of it
_SLOW_CUTS = 500_000  # ways to cut; about half a second of deriving


class SpmCodec:
    """SentencePiece BPE. Characters without a piece become their bytes' tokens."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab.built()
        pairs = _merges(vocab)
        tokens = vocab.tokens
        merges = [(tokens[left], tokens[right]) for left, right in zip(pairs[::2], pairs[1::2])]
        unk = None if vocab.unk is None else tokens[vocab.unk]
        model = models.BPE(vocab=vocab.ids, merges=merges, byte_fallback=True, unk_token=unk, fuse_unk=True)
        self._library = Tokenizer(model)

    def encode(self, pieces: list[Piece]) -> list[list[int]]:
        """The ids of each piece of text."""
        prefix = " " if self._vocab.add_space_prefix else ""
        texts = [(prefix + p.text if p.opens else p.text).replace(" ", SPACE) for p in pieces]
        return [e.ids for e in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def token_bytes(self, token: int) -> bytes:
        return piece_bytes(self._vocab, token)


def _merges(vocab: Vocab) -> array[int]:
    if sum(map(len, vocab.tokens)) < _SLOW_CUTS:
        return derive_merges(vocab)
    digest = hashlib.sha256("\0".join(vocab.tokens).encode("utf-8", "surrogatepass"))
    digest.update(bytes(vocab.types))
    digest.update(array("d", vocab.scores).tobytes())
    path = merges_cache.path_of(digest.hexdigest())
    pairs = merges_cache.load(path, len(vocab.tokens))
    if pairs is None:
        pairs = derive_merges(vocab)
        merges_cache.store(path, pairs)
    return pairs


def derive_merges(vocab: Vocab) -> array[int]:
    """Pairs of ids (left, right, left, …), best first: falling score of the whole, then rising ids.

    Control and byte tokens are never made by merging, so that text cannot spell them. Raises ModelError
    for texts so long that deriving would not end.
    """
    if sum(len(text) ** 2 for text in vocab.tokens) > _MAX_SQUARES:
        raise ModelError("tokenizer.ggml.tokens holds texts that are too long for SentencePiece BPE")
    find = vocab.ids.get
    found: list[tuple[float, int, int]] = []
    for token, text in enumerate(vocab.tokens):
        n = len(text)
        if n < 2 or vocab.types[token] in (UNKNOWN, CONTROL, BYTE):
            continue
        rank = -vocab.scores[token]
        found += [
            (rank, left, right)
            for cut in range(1, n)
            if (left := find(text[:cut])) is not None and (right := find(text[cut:])) is not None
        ]
    found.sort()
    return array("i", [token for _, left, right in found for token in (left, right)])


class UnigramCodec:
    """SentencePiece unigram. What has no piece becomes its bytes' tokens if there are any, else unknown."""

    def __init__(self, vocab: Vocab) -> None:
        if vocab.unk is None:
            raise ModelError("tokenizer.ggml.unknown_token_id is not set; a unigram tokenizer needs it")
        self._vocab = vocab.built()
        self._unk = vocab.unk
        self._byte_ids = _byte_ids(vocab)
        self._normalizer = _precompiled(vocab.charsmap) if vocab.charsmap else None
        self._library = Tokenizer(models.Unigram(_unigram_pieces(vocab), unk_id=vocab.unk))

    def encode(self, pieces: list[Piece]) -> list[list[int]]:
        """The ids of each piece of text. Every piece is normalized by itself, as in llama.cpp."""
        texts = [self._prepare(text) for text, *_ in pieces]
        encoded = [e.ids for e in self._library.encode_batch_fast(texts, add_special_tokens=False)]
        if self._byte_ids is None:
            return encoded
        return [self._spell(text, ids) if self._unk in ids else ids for text, ids in zip(texts, encoded)]

    def token_bytes(self, token: int) -> bytes:
        return piece_bytes(self._vocab, token)

    def _prepare(self, text: str) -> str:
        if self._normalizer is not None:
            text = _normalized(self._normalizer, text)
        if self._vocab.remove_extra_whitespaces:
            text = " ".join(word for word in text.split(" ") if word)
        if text and self._vocab.add_space_prefix:
            text = " " + text
        return text.replace(" ", SPACE)

    def _spell(self, text: str, ids: list[int]) -> list[int]:
        """``ids`` with every unknown token replaced by the bytes of its characters."""
        assert self._byte_ids is not None
        encoding = self._library.encode(text, add_special_tokens=False)
        out: list[int] = []
        for token, piece in zip(encoding.ids, encoding.tokens):
            out += [self._byte_ids[byte] for byte in piece.encode()] if token == self._unk else [token]
        return out


def _normalized(normalizer: normalizers.Normalizer, text: str) -> str:
    try:
        return normalizer.normalize_str(text)
    except BaseException as error:
        # The library checks the table while it reads it, and panics, which is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError("this model's tokenizer.ggml.precompiled_charsmap is damaged") from None


def _unigram_pieces(vocab: Vocab) -> list[tuple[str, float]]:
    least = min((vocab.scores[i] for i, kind in enumerate(vocab.types) if kind == NORMAL), default=0.0)
    pieces: list[tuple[str, float]] = []
    for token, text in enumerate(vocab.tokens):
        kind = vocab.types[token]
        if vocab.ids.get(text) != token or kind in (UNKNOWN, CONTROL, BYTE):
            # A name that no text contains, so that the token is never matched. Its score must not be the
            # least one, from which the library takes the cost of unknown characters.
            pieces.append((f"\0{token}\0", least))
        else:
            pieces.append((text, 0.0 if kind == USER_DEFINED else vocab.scores[token]))
    return pieces


def _precompiled(charsmap: bytes) -> normalizers.Normalizer:
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or size % 4 or size + 4 >= len(charsmap):
        raise ModelError("tokenizer.ggml.precompiled_charsmap is damaged: its table is longer than the array")
    try:
        return normalizers.Precompiled(charsmap)
    except Exception as error:
        raise ModelError(f"tokenizer.ggml.precompiled_charsmap cannot be used: {error}") from None


def _byte_ids(vocab: Vocab) -> list[int] | None:
    """The 256 byte tokens ``<0x00>`` … in order, or None unless all are there."""
    found = [vocab.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    ids = [token for token in found if token is not None and vocab.types[token] == BYTE]
    return ids if len(ids) == 256 else None


def piece_bytes(vocab: Vocab, token: int) -> bytes:
    """The bytes that ``token`` stands for."""
    text, kind = vocab.tokens[token], vocab.types[token]
    if kind == BYTE and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes((int(text[3:5], 16),))
        except ValueError:
            return b""
    if kind in (NORMAL, UNUSED):
        text = text.replace(SPACE, " ")
    return text.encode("utf-8", "surrogateescape")
