"""Writing tensors to files, whatever the format: streamed, and under the final name only when complete.

Wrong arguments are the caller's mistake and raise ValueError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from spola.core.dtype import DType, nbytes

__all__ = ["Buffer", "NewTensor", "check_tensors", "complete_file", "write_data"]

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: ``shape`` is row-major, ``data`` its bytes or a function yielding them in parts."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Buffer | Callable[[], Iterable[Buffer]]

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, prod(self.shape))


@contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the name ``path`` at the end; after an error nothing is left."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as out:
            yield out
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_tensors(tensors: Sequence[NewTensor]) -> None:
    """ValueError for a repeated name, or rows that are no whole blocks."""
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ValueError("two tensors have the same name")
    for tensor in tensors:
        if tensor.shape and tensor.shape[-1] % tensor.dtype.block:
            raise ValueError(
                f"tensor {tensor.name}: rows of {tensor.shape[-1]} do not fit {tensor.dtype.name}"
            )


def write_data(out: BinaryIO, tensor: NewTensor) -> None:
    """Write the bytes of ``tensor``; ValueError when there are more or fewer than its shape needs."""
    parts = tensor.data() if callable(tensor.data) else (tensor.data,)
    done = 0
    for part in parts:
        done += out.write(part)
    if done != tensor.nbytes:
        raise ValueError(f"tensor {tensor.name} has {done} bytes of data; {tensor.nbytes} were expected")
