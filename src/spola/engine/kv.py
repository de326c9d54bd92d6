"""KvSpace: the block tables of all requests over the pools of all KvGroups.

A table is append-only at its end and, in a window group, forgotten from its start: an entry that was given
back is -1. Blocks are *promised* at admission and taken when a slice needs them. A promise is a number, so
that a window group, which gives blocks back while its prompt is still being computed, needs no more of them
than it ever holds at once, and a prompt that was admitted can always be finished.

A window group promises each request its window, and to all of them together the blocks that the rows of one
step touch beyond (``windows``): these are *lent* to the slices in flight and come back with them. No step
may have more rows of prompts than ``prompt_rows`` says.

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
from spola.engine.windows import WindowBound

__all__ = ["GONE", "NO_HIT", "BlockTable", "Hit", "KvSpace", "Room", "TableOwner"]

GONE = -1  # entry of a block that a window group gave back


class BlockTable:
    """Block ids of one request in one group: entry i is of the i-th ``block_size`` positions."""

    __slots__ = ("first", "ids", "lent", "loose", "promised", "reach")

    def __init__(self) -> None:
        self.ids = array("i")
        self.first = 0  # entries before it are GONE
        self.promised = 0  # blocks still to be had without asking
        self.loose = 0  # blocks that a step may need beyond, out of those that all share
        self.lent = 0  # of those, what the slice in flight has
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

    ``max_slice`` is the most rows of one slice, ``max_rows`` of all in a step: they bound what a window group
    holds at once. None: slices cannot be cut short for others in flight, and each is promised all that it can
    hold.
    """

    def __init__(
        self,
        groups: Sequence[KvGroup],
        n_blocks: Sequence[int],
        *,
        block_size: int,
        max_slice: int,
        max_rows: int | None = None,
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
        self._bounds = tuple(
            WindowBound.of(group.window, block_size=block_size, max_slice=max_slice, max_rows=max_rows)
            if group.kind == "window"
            else None
            for group in groups
        )
        # A window group gives blocks back and is promised others for them, which sharing must not prevent.
        self.pools = tuple(
            BlockPool(n, each_counts=bound is not None, step=0 if bound is None else bound.step)
            for bound, n in zip(self._bounds, n_blocks, strict=True)
        )
        self.copies: list[BlockCopy] = []  # for the next step
        self.windowed = tuple(g for g, bound in enumerate(self._bounds) if bound is not None)

    def blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` positions."""
        return -(-tokens // self.block_size)

    def capacity(self) -> int | None:
        """Positions that one request alone can have; None if only windows bound it."""
        bounds = [
            pool.n_blocks * self.block_size
            for pool, bound in zip(self.pools, self._bounds, strict=True)
            if bound is None or bound.alone > pool.n_blocks
        ]
        return min(bounds, default=None)

    def spare(self, watermark: float, seats: int) -> tuple[int, ...]:
        """Blocks of each group that admission leaves to those who run: ``watermark`` of all; none where
        ``seats`` requests never lack any.
        """
        spare = []
        for pool, bound in zip(self.pools, self._bounds, strict=True):
            never = bound is not None and bound.together(seats) <= pool.n_blocks
            spare.append(0 if never else int(pool.n_blocks * watermark))
        return tuple(spare)

    def prompt_rows(self) -> int | None:
        """Rows that the prompts of one more step may have together while others are in flight; None: any
        number. One block of rows is always left, as each request has that without borrowing.
        """
        left = [pool.step - pool.lent for pool in self.pools if pool.lent]
        return (min(left) + 1) * self.block_size if left else None

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
            table.promised, table.loose = self.claim(group, table)
            if need + table.promised + spare[group] > pool.room(table.loose):
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
        pool.loose += table.loose
        copied = bool(hit.tokens) and hit.sources[group] != GONE
        for block in table.ids[table.first : len(table.ids) - copied]:
            pool.share(block)
        if copied:
            # The source may be free, and even be what is taken: copies are read before anything is written.
            table.ids[-1] = pool.take()
            if table.ids[-1] != hit.sources[group]:
                self.copies.append(BlockCopy(group, hit.sources[group], table.ids[-1]))

    def extend(self, owner: TableOwner, end: int, *, spare: int = 0, lend: bool = False) -> bool:
        """Make the tables cover positions [0, end).

        False, and nothing done, unless every pool keeps ``spare`` blocks available. With ``lend``, for rows
        of a prompt: what is not ``owner``'s own comes out of what all share, and from nowhere else.
        """
        want = self.blocks(end)
        for table in owner.tables:
            if want > len(table.ids):
                break
        else:
            return True  # as in most steps
        for pool, table in zip(self.pools, owner.tables, strict=True):
            more = want - len(table.ids) - table.promised
            if more > 0 and (more > pool.kept if lend else more + spare > pool.available):
                return False
        for pool, table in zip(self.pools, owner.tables, strict=True):
            for _ in range(want - len(table.ids)):
                table.ids.append(pool.take())
                if table.promised:
                    table.promised -= 1
                    pool.promised -= 1
                elif lend:
                    table.lent += 1
                    pool.lent += 1
        return True

    def trim(self, owner: TableOwner, computed: int) -> None:
        """Give back the blocks wholly below the windows of a request with ``computed`` positions, none of
        whose rows are in flight, and those that were lent to it.
        """
        for index in self.windowed:
            group = self.groups[index]
            table, pool = owner.tables[index], self.pools[index]
            first = min(max(0, computed - group.window) // self.block_size, len(table.ids))
            if first <= table.first and not table.lent:
                continue  # its promise has followed what was taken
            for entry in range(table.first, first):
                pool.drop(table.ids[entry])
                table.ids[entry] = GONE
            table.first = max(table.first, first)
            promised, loose = self.claim(index, table)
            pool.promised += promised - table.promised
            pool.loose += loose - table.loose
            pool.lent -= table.lent
            table.promised, table.loose, table.lent = promised, loose, 0

    def release(self, owner: TableOwner) -> None:
        """Give everything back. Idempotent."""
        for pool, table in zip(self.pools, owner.tables, strict=False):
            pool.promised -= table.promised
            pool.loose -= table.loose
            pool.lent -= table.lent
            # The end of a chain first, so that its beginning, which others may share, is reused last.
            for entry in range(len(table.ids) - 1, table.first - 1, -1):
                pool.drop(table.ids[entry])
        owner.tables = ()

    def claim(self, group: int, table: BlockTable) -> tuple[int, int]:
        """Blocks still missing to reach ``table.reach``, beyond those that will have been given back: those
        that it is to have itself, and those that a step may have to lend it.
        """
        need = self.blocks(table.reach) - table.first
        bound = self._bounds[group]
        if bound is None:
            return max(0, need - table.held), 0
        return max(0, min(need, bound.each) - table.held), max(0, min(need, bound.alone) - bound.each)

    def check(self, owners: Sequence[TableOwner]) -> None:
        """Raise AssertionError unless the pools hold exactly what ``owners`` have."""
        for index, pool in enumerate(self.pools):
            pool.check()
            refs = array("i", [0]) * pool.n_blocks
            promised = loose = lent = 0
            for owner in owners:
                if not owner.tables:
                    continue
                table = owner.tables[index]
                promised += table.promised
                loose += table.loose
                lent += table.lent
                assert 0 <= table.lent <= table.loose, "more lent to a request than it may need"
                assert (table.promised, table.loose) == self.claim(index, table), (
                    "a promise is not what is missing"
                )
                assert all(block == GONE for block in table.ids[: table.first]), (
                    "a live entry below the window"
                )
                for block in table.ids[table.first :]:
                    refs[block] += 1
            assert refs == pool.refs, f"KV group {index}: reference counts differ from the block tables"
            assert promised == pool.promised, f"KV group {index}: {pool.promised} promised, {promised} due"
            assert (loose, lent) == (pool.loose, pool.lent), f"KV group {index}: lent blocks are miscounted"
            assert pool.kept >= 0, f"KV group {index}: {pool.lent} blocks lent, more than a step may need"
            assert pool.available >= 0, f"KV group {index}: {-pool.available} more promised than there are"


class Room:
    """The blocks that would be available in ``kv`` once some requests had given theirs back."""

    def __init__(self, kv: KvSpace) -> None:
        self._kv = kv
        self._free = [pool.available + pool.kept for pool in kv.pools]
        self._loose = [pool.loose for pool in kv.pools]

    def give_back(self, owner: TableOwner) -> None:
        """``owner``, of whom nothing is in flight, is one of them."""
        for group, (pool, table) in enumerate(zip(self._kv.pools, owner.tables, strict=True)):
            live = table.ids[table.first :]
            freed = len(live) if pool.each_counts else sum(pool.refs[block] == 1 for block in live)
            self._free[group] += table.promised + freed
            self._loose[group] -= table.loose

    def holds(self, reach: int, spare: Sequence[int]) -> bool:
        """Whether [0, reach) of a request without a hit could be promised, and ``spare`` blocks be left."""
        table = BlockTable()
        table.reach = reach
        for group, pool in enumerate(self._kv.pools):
            promised, loose = self._kv.claim(group, table)
            kept = min(pool.step, self._loose[group] + loose) - pool.lent
            if promised + kept + spare[group] > self._free[group]:
                return False
        return True
