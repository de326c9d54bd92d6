"""The paged KV cache: memory of the blocks whose ids the engine hands out.

Values are stored as the group says (f16 rounds to nearest even, int8 is codes and f16 scales) and read back
from there, also by rows of the step that wrote them. Owns no ids and no policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spola.backends.reference.arrays import F32, Ints, narrow
from spola.backends.reference.batch import Batch
from spola.core.errors import CapacityError
from spola.core.runner import BLOCK_TOKENS, KV_GROUP, KvGroup
from spola.core.step import BlockCopy

__all__ = ["Cached", "KvCache", "quantize_kv"]

_TYPES = {"f16": np.float16, "f32": np.float32, "int8": np.int8}


@dataclass(frozen=True, slots=True)
class Cached:
    """K or V of some blocks as f32 [blocks, kv heads, 32, dim].

    With ``scale`` [blocks, kv heads, 32, groups] these are codes, and each ``KV_GROUP`` dimensions share one.
    """

    values: F32
    scale: F32 | None

    def first(self, dim: int) -> Cached:
        """The first ``dim`` dimensions."""
        scale = None if self.scale is None else self.scale[..., : -(-dim // KV_GROUP)]
        return Cached(self.values[..., :dim], scale)

    def decoded(self) -> F32:
        if self.scale is None:
            return self.values
        dim = self.values.shape[-1]
        out: F32 = self.values * np.repeat(self.scale, KV_GROUP, axis=-1)[..., :dim]
        return out


def quantize_kv(x: F32) -> tuple[Ints, Ints]:
    """int8 codes [..., dim] and f16 scales [..., groups] of x [..., dim]: "Attention" of docs/numerics.md."""
    dim = x.shape[-1]
    groups = -(-dim // KV_GROUP)
    padded = np.zeros((*x.shape[:-1], groups * KV_GROUP), np.float32)
    padded[..., :dim] = x
    parts = padded.reshape(*x.shape[:-1], groups, KV_GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        amax = np.abs(parts).max(axis=-1)
        half = np.where(np.isfinite(amax), amax / np.float32(127), np.float32(np.nan)).astype(np.float16)
        scale = half.astype(np.float32)
        usable = (scale > 0) & np.isfinite(scale)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=usable)
        codes = np.rint(np.where(usable[..., None], parts, np.float32(0)) * inverse[..., None])
    codes = np.clip(codes, -127, 127).astype(np.int8)
    return codes.reshape(*x.shape[:-1], groups * KV_GROUP)[..., :dim], half


class _Part:
    """K or V of a group: [layers, blocks, kv heads, 32, dim], and scales in place of the last where int8."""

    def __init__(self, shape: tuple[int, ...], dim: int, dtype: str) -> None:
        self.values = np.zeros((*shape, dim), _TYPES[dtype])
        self.scale = None
        if dtype == "int8":
            self.scale = np.zeros((*shape, -(-dim // KV_GROUP)), np.float16)

    @property
    def arrays(self) -> list[Ints]:
        return [self.values] if self.scale is None else [self.values, self.scale]

    def write(self, layer: int, block: Ints, offset: Ints, x: F32) -> None:
        if self.scale is None:
            self.values[layer, block, :, offset] = x
        else:
            codes, scale = quantize_kv(x)
            self.values[layer, block, :, offset] = codes
            self.scale[layer, block, :, offset] = scale

    def read(self, layer: int, blocks: Ints) -> Cached:
        """f32 values and scales of ``blocks``."""
        scale = None if self.scale is None else narrow(self.scale[layer, blocks])
        return Cached(narrow(self.values[layer, blocks]), scale)


class KvCache:
    """K and V of every layer, for each KvGroup."""

    def __init__(self, groups: Sequence[KvGroup], blocks: Sequence[int]) -> None:
        self.place: dict[int, tuple[int, int]] = {}  # layer -> group, index within it
        self._parts: list[tuple[_Part, _Part | None]] = []  # no V: it is the first dimensions of K
        self._v_dims: list[int] = []
        need = sum(g.bytes_per_block * n for g, n in zip(groups, blocks, strict=True))
        for index, (group, n) in enumerate(zip(groups, blocks, strict=True)):
            shape = (len(group.layers), n, group.heads, BLOCK_TOKENS)
            try:
                k = _Part(shape, group.k_dim, group.k_dtype)
                latent = group.kind == "latent"
                self._parts.append((k, None if latent else _Part(shape, group.v_dim, group.v_dtype)))
            except MemoryError:
                raise CapacityError(f"no memory for a KV cache of {need} bytes; give fewer blocks") from None
            self._v_dims.append(group.v_dim)
            self.place |= {layer: (index, i) for i, layer in enumerate(group.layers)}

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for group in range(len(self._parts)) for a in self._arrays(group))

    def write(self, layer: int, batch: Batch, k: F32, v: F32 | None) -> None:
        """Store k [rows, kv heads, k_dim] and v [rows, kv heads, v_dim] at the rows' positions.

        ``v`` is None where V is a part of K.
        """
        group, i = self.place[layer]
        block = batch.tables[group][batch.slice_of, batch.positions // BLOCK_TOKENS]
        offset = batch.positions % BLOCK_TOKENS
        for part, x in zip(self._parts[group], (k, v), strict=True):
            if part is not None:
                assert x is not None
                part.write(i, block, offset, x)

    def read(self, layer: int, blocks: Ints) -> tuple[Cached, Cached]:
        """K and V of ``blocks``."""
        group, i = self.place[layer]
        k, v = self._parts[group]
        found = k.read(i, blocks)
        return found, found.first(self._v_dims[group]) if v is None else v.read(i, blocks)

    def prepare(self, copies: Iterable[BlockCopy], zero: Iterable[tuple[int, int]]) -> None:
        """Do a step's copies and clearings; all sources are read before anything is written."""
        held = [(c, [a[:, c.source].copy() for a in self._arrays(c.group)]) for c in copies]
        for group, block in zero:
            for array in self._arrays(group):
                array[:, block] = 0
        for copy, values in held:
            for array, value in zip(self._arrays(copy.group), values, strict=True):
                array[:, copy.target] = value

    def poison(self, group: int, block: int) -> None:
        """Fill a block with NaN (of int8, its scales), so that a test sees any read of it."""
        for array in self._arrays(group):
            array[:, block] = -1 if array.dtype == np.int8 else np.nan

    def _arrays(self, group: int) -> list[Ints]:
        return [array for part in self._parts[group] if part is not None for array in part.arrays]
