"""BlockPool: which KV blocks of one KvGroup are free, and how many owners the others have.

Blocks are numbers; the backend owns the memory. A block may carry a hash of the tokens it holds, kept
while it is free, so that a prefix index can find and revive it; this module does not look blocks up.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

__all__ = ["BlockPool"]


class BlockPool:
    """Reference counts and an intrusive LRU list of free blocks, all operations O(1).

    A freed block with a hash goes to the tail of the list and is reused last; one without goes to the head.
    ``promised`` blocks are free but spoken for (see ``kv.KvSpace``): ``available`` leaves them out. So it
    does with ``kept`` ones: what owners may come to need beyond, ``loose`` blocks if each were alone and
    ``step`` at most, less what is ``lent`` already. With ``each_counts`` it also leaves out one block for
    every owner after the first of a block, so that whoever gives up a block can have another one, even if the
    block stays with its other owners.
    """

    def __init__(self, n_blocks: int, *, each_counts: bool = False, step: int = 0) -> None:
        if n_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {n_blocks}")
        self.n_blocks = n_blocks
        self.free = n_blocks
        self.promised = 0
        self.step = step
        self.loose = 0
        self.lent = 0
        self.each_counts = each_counts
        self.surplus = 0  # owners after the first, over all blocks
        self.shared = 0  # blocks with several owners
        self.cached = 0  # free blocks with a hash
        self.refs = array("i", [0]) * n_blocks
        self.hashes: list[bytes | None] = [None] * n_blocks
        self.on_reuse: Callable[[int], None] | None = None  # called with a block before its hash is forgotten
        # A ring through the free blocks; index n_blocks is its sentinel.
        self._next = array("i", [*range(1, n_blocks + 1), 0])
        self._prev = array("i", [n_blocks, *range(n_blocks)])

    @property
    def available(self) -> int:
        return self.room()

    @property
    def kept(self) -> int:
        return min(self.step, self.loose) - self.lent

    def room(self, loose: int = 0) -> int:
        """What is available to somebody whose rows may need ``loose`` blocks beyond what is promised."""
        kept = min(self.step, self.loose + loose) - self.lent
        return self.free - self.promised - kept - (self.surplus if self.each_counts else 0)

    @property
    def used(self) -> int:
        return self.n_blocks - self.free

    def take(self) -> int:
        """The least recently used free block, its hash forgotten, with one reference."""
        block: int = self._next[self.n_blocks]
        if block == self.n_blocks:
            raise IndexError("no free block")
        self._unlink(block)
        self.refs[block] = 1
        if self.hashes[block] is not None:
            if self.on_reuse is not None:
                self.on_reuse(block)
            self.hashes[block] = None
        return block

    def label(self, block: int, key: bytes | None) -> None:
        """Give ``block`` the hash of what it holds, or take it away."""
        if not self.refs[block]:
            self.cached += (key is not None) - (self.hashes[block] is not None)
        self.hashes[block] = key

    def share(self, block: int) -> None:
        """One owner more; a free block with a hash comes back to life."""
        if self.refs[block] == 0:
            self._unlink(block)
        else:
            self.surplus += 1
            self.shared += self.refs[block] == 1
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One owner less; the last one frees the block."""
        refs = self.refs[block]
        if refs < 1:
            raise ValueError(f"block {block} is free already")
        self.refs[block] = refs - 1
        if refs == 1:
            self._link(block, at_tail=self.hashes[block] is not None)
        else:
            self.surplus -= 1
            self.shared -= refs == 2

    def free_blocks(self) -> list[int]:
        """The free list in the order of reuse."""
        out: list[int] = []
        block = self._next[self.n_blocks]
        while block != self.n_blocks and len(out) <= self.n_blocks:
            out.append(block)
            block = self._next[block]
        return out

    def check(self) -> None:
        """Raise AssertionError unless counts and free list agree."""
        listed = self.free_blocks()
        assert len(listed) == self.free, f"{len(listed)} blocks in the free list, {self.free} counted"
        assert len(set(listed)) == len(listed), "a block is twice in the free list"
        idle = {block for block, refs in enumerate(self.refs) if refs == 0}
        assert set(listed) == idle, "the free list is not the set of blocks without owner"
        assert min(self.refs) >= 0, "a negative reference count"
        surplus = sum(refs - 1 for refs in self.refs if refs)
        assert surplus == self.surplus, f"{surplus} owners after the first, {self.surplus} counted"
        several = sum(refs > 1 for refs in self.refs)
        assert several == self.shared, f"{several} blocks with several owners, {self.shared} counted"
        kept = sum(self.hashes[block] is not None for block in listed)
        assert kept == self.cached, f"{kept} free blocks with a hash, {self.cached} counted"
        assert self.promised >= 0, "a negative promise"
        assert self.available >= 0, f"{self.promised} blocks promised of {self.free} free, {surplus} shared"
        for block in range(self.n_blocks + 1):
            if block == self.n_blocks or self.refs[block] == 0:
                assert self._prev[self._next[block]] == block, f"the free list is broken at block {block}"

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.free -= 1
        self.cached -= self.hashes[block] is not None

    def _link(self, block: int, *, at_tail: bool) -> None:
        end = self.n_blocks
        before = self._prev[end] if at_tail else end
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.free += 1
        self.cached += at_tail
