"""LoRA adapters in the reference: which rows of a step have which, and what that adds to a linear layer.

f32: plain matrix products. quantized: in the order of docs/numerics.md, as the native kernels compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spola.backends.reference.arrays import F32, Ints, sum16
from spola.core.errors import ModelError
from spola.core.runner import Adapter
from spola.spec.manifest import TensorInfo

__all__ = ["Adapters", "Factors", "low_rank_f32", "low_rank_in_order"]


@dataclass(frozen=True, slots=True)
class Factors:
    """``a`` [rank, columns], ``b`` [rows, rank]: what is added is b (scale * (a x))."""

    a: F32
    b: F32
    scale: np.float32


LowRank = Callable[[Factors, F32], F32]


def low_rank_f32(factors: Factors, x: F32) -> F32:
    return (factors.scale * (x @ factors.a.T)) @ factors.b.T


def low_rank_in_order(factors: Factors, x: F32) -> F32:
    """Sixteen lanes along the columns; then the ranks one after the other."""
    t = factors.scale * sum16(x[:, None, :] * factors.a)
    total = np.zeros((len(x), len(factors.b)), np.float32)
    for k in range(len(factors.a)):
        total = total + t[:, k, None] * factors.b[:, k]
    return total


class Adapters:
    """The adapters that requests may name, and those of the rows of the step that runs."""

    def __init__(self, low_rank: LowRank) -> None:
        self._low_rank = low_rank
        self._loaded: dict[str, dict[str, Factors]] = {}
        self._rows: list[tuple[Ints, dict[str, Factors]]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    def add(self, adapter: Adapter, infos: dict[str, TensorInfo]) -> None:
        """Raises ModelError for factors that do not fit their matrix, or that are not finite."""
        if adapter.name in self._loaded:
            raise ModelError(f"adapter {adapter.name!r} is there already")
        parts: dict[str, Factors] = {}
        for name, part in adapter.parts.items():
            info = infos.get(name)
            a, b = np.frombuffer(part.a, "<f4"), np.frombuffer(part.b, "<f4")
            if info is None or info.role != "linear":
                raise ModelError(f"adapter {adapter.name!r}: {name} is no matrix that adapters can change")
            rows, columns = info.shape
            if (a.size, b.size) != (adapter.rank * columns, rows * adapter.rank):
                raise ModelError(
                    f"adapter {adapter.name!r}, {name}: the factors of an adapter do not fit its matrix"
                )
            if not (np.isfinite(a).all() and np.isfinite(b).all()):
                raise ModelError(f"adapter {adapter.name!r}, {name}: holds values that are not finite")
            a, b = a.reshape(adapter.rank, columns), b.reshape(rows, adapter.rank)
            parts[name.removesuffix(".weight")] = Factors(a.copy(), b.copy(), np.float32(adapter.scale))
        self._loaded[adapter.name] = parts

    def drop(self, name: str) -> None:
        self._loaded.pop(name, None)

    def begin(self, rows: Sequence[tuple[slice, str | None]]) -> None:
        """``rows`` of the step that runs next, and the adapter of their request."""
        self._rows = [
            (np.arange(part.start, part.stop), self._loaded[name]) for part, name in rows if name is not None
        ]

    def deltas(self, matrix: str, x: F32) -> Iterator[tuple[Ints, F32]]:
        """What is added to which rows of the product of ``matrix`` with the step's rows ``x``."""
        for rows, parts in self._rows:
            if matrix in parts:
                yield rows, self._low_rank(parts[matrix], x[rows])
