"""KvSpace: the block tables of all requests over the pools of all KvGroups.

A table is append-only at its end and, in a window group, forgotten from its start: an entry that was given
back is -1. Blocks are *promised* at admission and taken when a slice needs them. A promise is a number, so
that a window group, which gives blocks back while its prompt is still being computed, needs no more of them
than it ever holds at once, and a prompt that was admitted can always be finished.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from spola.core.errors import ConfigError
from spola.core.runner import KvGroup
from spola.engine.pool import BlockPool

__all__ = ["GONE", "BlockTable", "KvSpace", "TableOwner"]

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
        self.pools = tuple(BlockPool(n) for n in n_blocks)
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

    def reserve(self, owner: TableOwner, reach: int, *, spare: Sequence[int]) -> bool:
        """Promise ``owner``, which has no tables, the blocks to compute positions [0, reach).

        False, and nothing done, unless every pool g keeps ``spare[g]`` blocks available.
        """
        tables = []
        for group, pool in enumerate(self.pools):
            table = BlockTable()
            table.reach = reach
            table.promised = self._due(group, table)
            if table.promised + spare[group] > pool.available:
                return False
            tables.append(table)
        owner.tables = tuple(tables)
        for pool, table in zip(self.pools, tables, strict=True):
            pool.promised += table.promised
        return True

    def extend(self, owner: TableOwner, end: int, *, spare: int = 0) -> bool:
        """Make the tables cover positions [0, end).

        False, and nothing done, unless every pool keeps ``spare`` blocks available.
        """
        want = self.blocks(end)
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
        for index, group in enumerate(self.groups):
            if group.kind != "window":
                continue
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
