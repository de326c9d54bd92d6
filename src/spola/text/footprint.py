"""What a tokenizer takes in memory, before it is built, from the number of its tokens alone.

Counted from what it consists of: CPython's objects for texts and ids, and the hash maps of the ``tokenizers``
library. What is freed again while it is built does not count, nor tables that come with the first grammar.
"""

from __future__ import annotations

__all__ = ["tokenizer_bytes"]

# Python's part, bytes of a token: three lists and a type, an int, and a text of six letters or so.
_PER_TOKEN = 3 * 8 + 1 + 32 + 80
# The library's part: token to id and id to token, a text for each, and the pair that each merge joins.
_MAP_ENTRY, _TEXT, _MERGE_ENTRY = 32 + 1, 32, 16 + 1
_MERGES = 2  # of a token: byte-level vocabularies have one to two, SentencePiece's ways to cut are two


def tokenizer_bytes(tokens: int) -> int:
    """Bytes of a tokenizer of ``tokens`` tokens, on a 64-bit system."""
    python = tokens * _PER_TOKEN + _dict_bytes(tokens)
    library = 2 * (_buckets(tokens) * _MAP_ENTRY + tokens * _TEXT) + _buckets(_MERGES * tokens) * _MERGE_ENTRY
    return python + library


def _dict_bytes(entries: int) -> int:
    """Of CPython's dict of strings: a power of two of places, of which two thirds can be taken."""
    places = 8
    while places * 2 // 3 < entries:
        places *= 2
    return places * (2 if places < 1 << 16 else 4) + places * 2 // 3 * 16


def _buckets(entries: int) -> int:
    """Of the library's hash maps (hashbrown): a power of two, of which seven eighths can be taken."""
    return 1 << (max(entries, 4) * 8 // 7 - 1).bit_length()
