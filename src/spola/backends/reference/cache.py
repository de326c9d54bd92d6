"""The paged KV cache: memory of the blocks whose ids the engine hands out.

Values are stored as the group says (f16 rounds to nearest even) and read back as f32, also by rows of the
step that wrote them. Owns no ids and no policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spola.backends.reference.arrays import F32, Ints
from spola.backends.reference.batch import Batch
from spola.core.errors import CapacityError
from spola.core.runner import BLOCK_TOKENS, KvGroup
from spola.core.step import BlockCopy

__all__ = ["KvCache"]

_TYPES = {"f16": np.float16, "f32": np.float32}


class KvCache:
    """K and V of every layer, [layers of the group, blocks, kv heads, 32, dim] for each KvGroup."""

    def __init__(self, groups: Sequence[KvGroup], blocks: Sequence[int]) -> None:
        self.place: dict[int, tuple[int, int]] = {}  # layer -> group, index within it
        self.k: list[Ints] = []
        self.v: list[Ints] = []
        need = sum(g.bytes_per_block * n for g, n in zip(groups, blocks, strict=True))
        for index, (group, n) in enumerate(zip(groups, blocks, strict=True)):
            shape = (len(group.layers), n, group.heads, BLOCK_TOKENS)
            try:
                self.k.append(np.zeros((*shape, group.k_dim), _TYPES[group.k_dtype]))
                self.v.append(np.zeros((*shape, group.v_dim), _TYPES[group.v_dtype]))
            except MemoryError:
                raise CapacityError(f"no memory for a KV cache of {need} bytes; give fewer blocks") from None
            self.place |= {layer: (index, i) for i, layer in enumerate(group.layers)}

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.k, *self.v))

    def write(self, layer: int, batch: Batch, k: F32, v: F32) -> None:
        """Store k [rows, kv heads, k_dim] and v [rows, kv heads, v_dim] at the rows' positions."""
        group, i = self.place[layer]
        block = batch.tables[group][batch.slice_of, batch.positions // BLOCK_TOKENS]
        offset = batch.positions % BLOCK_TOKENS
        self.k[group][i, block, :, offset] = k
        self.v[group][i, block, :, offset] = v

    def read(self, layer: int, blocks: Ints) -> tuple[F32, F32]:
        """K and V of ``blocks`` as f32 [blocks, kv heads, 32, dim]."""
        group, i = self.place[layer]
        return self.k[group][i, blocks].astype(np.float32), self.v[group][i, blocks].astype(np.float32)

    def prepare(self, copies: Iterable[BlockCopy], zero: Iterable[tuple[int, int]]) -> None:
        """Do a step's copies and clearings; all sources are read before anything is written."""
        held = [(c, self.k[c.group][:, c.source].copy(), self.v[c.group][:, c.source].copy()) for c in copies]
        for group, block in zero:
            self.k[group][:, block] = 0
            self.v[group][:, block] = 0
        for copy, k, v in held:
            self.k[copy.group][:, copy.target] = k
            self.v[copy.group][:, copy.target] = v

    def poison(self, group: int, block: int) -> None:
        """Fill a block with NaN, so that a test sees any read of it."""
        self.k[group][:, block] = np.nan
        self.v[group][:, block] = np.nan
