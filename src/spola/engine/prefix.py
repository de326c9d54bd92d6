"""PrefixIndex: which block of one KvGroup holds the K and V of which text.

A block is found by the text from position 0 to its end: a key is a hash over the key before it and the
block's own tokens, and the first key is one over whatever else the numbers depend on (``root_key``). Hashes
only find: the stored tokens are compared before a block is given out. Only full blocks of tokens that count
are entered, so a block in here is never written again; the pool drops its entry when it reuses the block.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from spola.engine.pool import BlockPool

__all__ = ["KeyChain", "PrefixIndex", "root_key"]

KEY_BYTES = 16


def root_key(extras: Iterable[tuple[str, str]]) -> bytes:
    """The key before the first block. ``extras``: (what it is, its value), so that no two kinds can mix."""
    state = blake2b(digest_size=KEY_BYTES)
    for tag, value in sorted(extras):
        for part in (tag.encode(), value.encode("utf-8", "surrogatepass")):
            state.update(len(part).to_bytes(8, "little") + part)
    return state.digest()


def next_key(parent: bytes, tokens: bytes) -> bytes:
    """The key of the block with ``tokens`` (int32 little-endian) after ``parent``."""
    return blake2b(parent + tokens, digest_size=KEY_BYTES).digest()


class KeyChain:
    """The keys of one request's text, made as far as somebody asked. ``published`` blocks were offered."""

    __slots__ = ("_keys", "_size", "published")

    def __init__(self, root: bytes, block_size: int) -> None:
        self._keys = [root]
        self._size = block_size
        self.published = 0

    def at(self, known: array[int], n: int) -> bytes:
        """The key of the first ``n`` blocks of ``known``, which may only have grown since the last call."""
        keys, size = self._keys, self._size
        while len(keys) <= n:
            end = len(keys) * size
            keys.append(next_key(keys[-1], known[end - size : end].tobytes()))
        return keys[n]


@dataclass(slots=True)
class _Entry:
    key: bytes
    parent: bytes
    tokens: bytes


class PrefixIndex:
    """The published blocks of ``pool``. It owns none: a free block is found until the pool reuses it."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._entries: dict[int, _Entry] = {}
        self._by_key: dict[bytes, int] = {}
        # Blocks that follow a text and begin with a token: candidates for a partial match.
        self._after: dict[tuple[bytes, bytes], dict[int, None]] = {}
        pool.on_reuse = self._forget

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: bytes, parent: bytes, tokens: bytes) -> int | None:
        """The block that holds ``tokens`` after the text of ``parent``."""
        block = self._by_key.get(key)
        if block is None:
            return None
        entry = self._entries[block]
        return block if entry.parent == parent and entry.tokens == tokens else None

    def longest(self, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """(n, block): of the blocks after the text of ``parent`` the one that begins with most of ``tokens``.

        n is how many they have in common; 0, and the block meaningless, when none begins alike.
        """
        best, found = 0, -1
        for block in self._after.get((parent, tokens[:4]), ()):
            n = _common(self._entries[block].tokens, tokens)
            if n > best:
                best, found = n, block
        return best, found

    def publish(self, block: int, key: bytes, parent: bytes, tokens: bytes) -> None:
        """Offer ``block``, which is full and in use. A text that is here already keeps its block."""
        if key in self._by_key or block in self._entries:
            return
        self._entries[block] = _Entry(key, parent, tokens)
        self._by_key[key] = block
        self._after.setdefault((parent, tokens[:4]), {})[block] = None
        self._pool.label(block, key)

    def clear(self) -> None:
        """Forget every block, in use or not."""
        for block in list(self._entries):
            self._forget(block)

    def check(self) -> None:
        """Raise AssertionError unless entries and pool agree."""
        hashed = {block: key for block, key in enumerate(self._pool.hashes) if key is not None}
        assert hashed == {block: entry.key for block, entry in self._entries.items()}, (
            "the hashes of the pool are not those of the prefix index"
        )
        assert {key: block for block, key in hashed.items()} == self._by_key, "a key leads to another block"
        after = {(e.parent, e.tokens[:4], block) for block, e in self._entries.items()}
        listed = [(*where, block) for where, blocks in self._after.items() for block in blocks]
        assert sorted(listed) == sorted(after), "the blocks after a text are wrong"
        for entry in self._entries.values():
            assert next_key(entry.parent, entry.tokens) == entry.key, (
                "a block under a key that is not its own"
            )

    def _forget(self, block: int) -> None:
        entry = self._entries.pop(block)
        del self._by_key[entry.key]
        where = (entry.parent, entry.tokens[:4])
        del self._after[where][block]
        if not self._after[where]:
            del self._after[where]
        self._pool.label(block, None)


def _common(a: bytes, b: bytes) -> int:
    """Whole int32 numbers that ``a`` and ``b`` begin with alike."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n // 4
    low, high = 0, n // 4
    while high - low > 1:
        middle = (low + high) // 2
        if a[: 4 * middle] == b[: 4 * middle]:
            low = middle
        else:
            high = middle
    return low
