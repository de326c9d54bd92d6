"""The rows of one Step as arrays: which token, at which position, of which slice, through which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spola.backends.reference.arrays import Ints
from spola.core.runner import BLOCK_TOKENS
from spola.core.step import Slice, unpack_ids

__all__ = ["Batch", "make_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of all slices one after the other.

    ``ids``, ``positions``, ``slice_of``: int64 [rows]. ``first``: int64 [slices + 1], where each slice
    begins. ``tables``: per KV group int64 [slices, blocks], -1 behind a table's end.
    """

    ids: Ints
    positions: Ints
    slice_of: Ints
    first: Ints
    tables: tuple[Ints, ...]

    @property
    def n_rows(self) -> int:
        return len(self.ids)

    def rows(self, index: int) -> slice:
        """The rows of slice ``index``."""
        return slice(int(self.first[index]), int(self.first[index + 1]))


def make_batch(slices: Sequence[Slice], n_groups: int) -> Batch:
    """Lay ``slices`` out. They have at least one row each, and their tables cover their rows."""
    lengths = np.array([s.n for s in slices], np.int64)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = np.concatenate([np.asarray(unpack_ids(s.ids), np.int64) for s in slices])
    slice_of = np.repeat(np.arange(len(slices)), lengths)
    starts = np.array([s.start for s in slices], np.int64)
    positions = np.arange(len(ids)) - first[slice_of] + starts[slice_of]
    tables = []
    for group in range(n_groups):
        used = [-(-(s.start + s.n) // BLOCK_TOKENS) for s in slices]
        table = np.full((len(slices), max(used)), -1, np.int64)
        for row, (s, n) in enumerate(zip(slices, used, strict=True)):
            table[row, :n] = unpack_ids(s.tables[group])[:n]
        tables.append(table)
    return Batch(ids, positions, slice_of, first, tuple(tables))
