"""KvSpace: the block tables of all requests over the pools of all KvGroups.

A table is append-only at its end and, in a window group, forgotten from its start: an entry that was given
back is -1. Blocks are *promised* at admission and taken when a slice needs them. A promise is a number, so
that a window group, which gives blocks back while its prompt is still being computed, needs no more of them
than it ever holds at once, and a prompt that was admitted can always be finished.

A block with several owners, or with a hash, is never written: whoever goes on inside of one gets a copy, made
by the backend at the start of the next step (``copies``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spola.core.errors import ConfigError
from spola.core.runner import KvGroup
from spola.core.step import BlockCopy
from spola.engine.pool import BlockPool

__all__ = ["GONE", "NO_HIT", "BlockTable", "Hit", "KvSpace", "TableOwner"]

GONE = -1  # entry of a block that a window group gave back


class BlockTable:
    """Block ids of one request in one group: entry i is of the i-th ``block_size`` positions."""

    __slots__ = ("first", "ids", "promised", "reach")

    def __init__(self) -> None:
        self.ids = array("i")
        self.first = 0  # entries before it are GONE
        self.promised = 0  # blocks still to be had without asking
        self.reach = 0  # positions that were promised

    @property
    def held(self) -> int:
        return len(self.ids) - self.first


@dataclass(frozen=True, slots=True)
class Hit:
    """Blocks that hold the first ``tokens`` positions of a request, per KvGroup.

    ``tables[g]`` are the whole ones, GONE before entry ``firsts[g]``; ``sources[g]`` is the block to copy the
    remaining positions from, GONE if there are none.
    """

    tokens: int
    tables: tuple[array[int], ...] = ()
    firsts: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()


NO_HIT = Hit(0)


class TableOwner(Protocol):
    """What this module needs of a request."""

    tables: tuple[BlockTable, ...]


class KvSpace:
    """Blocks of ``block_size`` tokens, ``n_blocks[g]`` of them for ``groups[g]``.

    ``max_slice`` is the most rows of one slice: it bounds what a window group holds at once.
    """

    def __init__(
        self, groups: Sequence[KvGroup], n_blocks: Sequence[int], *, block_size: int, max_slice: int
    ) -> None:
        if len(groups) != len(n_blocks) or not groups:
            raise ConfigError(f"{len(groups)} KV groups but {len(n_blocks)} block counts")
        if block_size < 1:
            raise ConfigError(f"block size must be at least 1, not {block_size}")
        if min(n_blocks) < 1:
            raise ConfigError(
                f"every KV group needs at least one block, not {min(n_blocks)}; raise the KV memory"
            )
        self.block_size = block_size
        self.groups = tuple(groups)
        # A window group gives blocks back and is promised others for them, which sharing must not prevent.
        self.pools = tuple(
            BlockPool(n, each_counts=group.kind == "window")
            for group, n in zip(groups, n_blocks, strict=True)
        )
        self.copies: list[BlockCopy] = []  # for the next step
        self.windowed = tuple(g for g, group in enumerate(groups) if group.kind == "window")
        self._most = tuple(self._most_held(group, max_slice) for group in groups)

    def _most_held(self, group: KvGroup, max_slice: int) -> int | None:
        """Blocks that [start - window, start + rows) can touch, wherever it begins."""
        if group.kind != "window":
            return None
        if group.window < 1:
            raise ConfigError(f"a window KV group needs a window of at least 1 token, not {group.window}")
        return (group.window + max_slice - 2) // self.block_size + 2

    def blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` positions."""
        return -(-tokens // self.block_size)

    def capacity(self) -> int | None:
        """Positions that one request alone can have; None if only windows bound it."""
        bounds = [
            pool.n_blocks * self.block_size
            for pool, most in zip(self.pools, self._most, strict=True)
            if most is None or most > pool.n_blocks
        ]
        return min(bounds, default=None)

    def reserve(self, owner: TableOwner, reach: int, *, spare: Sequence[int], hit: Hit = NO_HIT) -> bool:
        """Give ``owner``, which has no tables, the blocks of ``hit``; promise what positions [0, reach) need.

        False, and nothing done, unless every pool g keeps ``spare[g]`` blocks available. A free block that is
        part of the hit counts as taken.
        """
        tables = []
        for group, pool in enumerate(self.pools):
            table = BlockTable()
            table.reach = reach
            need = 0
            if hit.tokens:
                table.ids, table.first = hit.tables[group][:], hit.firsts[group]
                need = sum(pool.each_counts or not pool.refs[b] for b in table.ids[table.first :])
                if hit.sources[group] != GONE:
                    table.ids.append(GONE)
                    need += 1
            table.promised = self._due(group, table)
            if need + table.promised + spare[group] > pool.available:
                return False
            tables.append(table)
        owner.tables = tuple(tables)
        for group, table in enumerate(tables):
            self._hold(group, table, hit)
        return True

    def _hold(self, group: int, table: BlockTable, hit: Hit) -> None:
        """Take the blocks that ``reserve`` has counted."""
        pool = self.pools[group]
        pool.promised += table.promised
        copied = bool(hit.tokens) and hit.sources[group] != GONE
        for block in table.ids[table.first : len(table.ids) - copied]:
            pool.share(block)
        if copied:
            # The source may be free, and even be what is taken: copies are read before anything is written.
            table.ids[-1] = pool.take()
            if table.ids[-1] != hit.sources[group]:
                self.copies.append(BlockCopy(group, hit.sources[group], table.ids[-1]))

    def need(self, reach: int) -> tuple[int, ...]:
        """Blocks of each group that are promised for positions [0, reach) without a hit."""
        table = BlockTable()
        table.reach = reach
        return tuple(self._due(group, table) for group in range(len(self.groups)))

    def releasable(self, owner: TableOwner) -> tuple[int, ...]:
        """Blocks of each group that would be available if ``owner`` gave everything back."""
        return tuple(
            table.promised
            + (
                table.held
                if pool.each_counts
                else sum(pool.refs[block] == 1 for block in table.ids[table.first :])
            )
            for pool, table in zip(self.pools, owner.tables, strict=True)
        )

    def extend(self, owner: TableOwner, end: int, *, spare: int = 0) -> bool:
        """Make the tables cover positions [0, end).

        False, and nothing done, unless every pool keeps ``spare`` blocks available.
        """
        want = self.blocks(end)
        for table in owner.tables:
            if want > len(table.ids):
                break
        else:
            return True  # as in most steps
        for pool, table in zip(self.pools, owner.tables, strict=True):
            more = want - len(table.ids) - table.promised
            if more > 0 and more + spare > pool.available:
                return False
        for pool, table in zip(self.pools, owner.tables, strict=True):
            for _ in range(want - len(table.ids)):
                table.ids.append(pool.take())
                if table.promised:
                    table.promised -= 1
                    pool.promised -= 1
        return True

    def trim(self, owner: TableOwner, computed: int) -> None:
        """Give back the blocks wholly below the windows of a request with ``computed`` positions."""
        for index in self.windowed:
            group = self.groups[index]
            table, pool = owner.tables[index], self.pools[index]
            first = min(max(0, computed - group.window) // self.block_size, len(table.ids))
            for entry in range(table.first, first):
                pool.drop(table.ids[entry])
                table.ids[entry] = GONE
            table.first = max(table.first, first)
            due = self._due(index, table)
            pool.promised += due - table.promised
            table.promised = due

    def release(self, owner: TableOwner) -> None:
        """Give everything back. Idempotent."""
        for pool, table in zip(self.pools, owner.tables, strict=False):
            pool.promised -= table.promised
            # The end of a chain first, so that its beginning, which others may share, is reused last.
            for entry in range(len(table.ids) - 1, table.first - 1, -1):
                pool.drop(table.ids[entry])
        owner.tables = ()

    def _due(self, group: int, table: BlockTable) -> int:
        """Blocks still missing to reach ``table.reach``, beyond those that will have been given back."""
        need = self.blocks(table.reach) - table.first
        most = self._most[group]
        if most is not None:
            need = min(need, most)
        return max(0, need - table.held)

    def check(self, owners: Sequence[TableOwner]) -> None:
        """Raise AssertionError unless the pools hold exactly what ``owners`` have."""
        for index, pool in enumerate(self.pools):
            pool.check()
            refs = array("i", [0]) * pool.n_blocks
            promised = 0
            for owner in owners:
                if not owner.tables:
                    continue
                table = owner.tables[index]
                promised += table.promised
                assert all(block == GONE for block in table.ids[: table.first]), (
                    "a live entry below the window"
                )
                for block in table.ids[table.first :]:
                    refs[block] += 1
            assert refs == pool.refs, f"KV group {index}: reference counts differ from the block tables"
            assert promised == pool.promised, f"KV group {index}: {pool.promised} promised, {promised} due"
