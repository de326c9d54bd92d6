"""The tensors of a model, one by one in manifest order, from files that merge, split or transpose them.

Copies whole rows; decodes and converts nothing, so it works for every storage type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from spola.core.dtype import DType, nbytes
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.formats.tensors import TensorSource
from spola.spec.manifest import TensorInfo
from spola.spec.sources import Piece, Source

__all__ = ["iter_tensors", "source_dtypes"]

_WORDS = {2: "H", 4: "I"}


def source_dtypes(file: TensorSource, sources: Mapping[str, Source]) -> dict[str, str]:
    """Canonical name -> DType name. Raises ModelError for a tensor whose parts have different types."""
    return {name: _dtype(file, name, source).name for name, source in sources.items()}


def iter_tensors(
    file: TensorSource, infos: list[TensorInfo], sources: Mapping[str, Source]
) -> Iterator[Tensor]:
    """Each tensor of ``infos`` that has a source, in that order.

    Each has a buffer of its own, which goes when the taker drops it.
    """
    for info in infos:
        source = sources.get(info.name)
        if source is not None:
            dtype = _dtype(file, info.name, source)
            yield Tensor(info.name, dtype.name, info.shape, _read(file, info, source, dtype).toreadonly())


def _dtype(file: TensorSource, name: str, source: Source) -> DType:
    dtypes = {piece.name: file.entry(piece.name).dtype for piece in source}
    first = next(iter(dtypes))
    for piece, dtype in dtypes.items():
        if dtype != dtypes[first]:
            other = f"{first}, with which it makes {name}, has {dtypes[first].name}"
            raise ModelError(f"tensor {piece} has type {dtype.name}, but {other}")
    return dtypes[first]


def _read(file: TensorSource, info: TensorInfo, source: Source, dtype: DType) -> memoryview:
    if len(source) == 1 and _is_whole(info, source[0]):
        return memoryview(file.read(source[0].name))
    columns = info.shape[-1] if len(info.shape) > 1 else 1
    if columns % dtype.block:
        raise ModelError(f"tensor {source[0].name}: rows of {columns} do not fit its type {dtype.name}")
    out = memoryview(bytearray(nbytes(dtype, prod(info.shape))))
    row = nbytes(dtype, columns)
    at = 0
    for piece in source:
        size = piece.rows * piece.runs * row
        part = out[at : at + size]
        if piece.transposed:
            _transpose(file, piece, dtype, columns, part)
        else:
            _runs(file, piece, row, part)
        at += size
    return out


def _is_whole(info: TensorInfo, piece: Piece) -> bool:
    rows = prod(info.shape[:-1]) if len(info.shape) > 1 else info.shape[0]
    return (
        not piece.transposed and piece.start == 0 and piece.runs == 1 and piece.stride == piece.rows == rows
    )


def _runs(file: TensorSource, piece: Piece, row: int, out: memoryview) -> None:
    size = piece.rows * row
    for run in range(piece.runs):
        start = (piece.start + run * piece.stride) * row
        file.read_into(piece.name, out[run * size : (run + 1) * size], start)


def _transpose(file: TensorSource, piece: Piece, dtype: DType, columns: int, out: memoryview) -> None:
    """Rows of the transpose of a [columns, n] matrix of plain numbers."""
    if dtype.block != 1:
        raise ModelError(f"tensor {piece.name} is transposed, which its type {dtype.name} does not allow")
    word = _WORDS[dtype.block_bytes]
    source = memoryview(file.read(piece.name)).cast(word)  # type: ignore[call-overload]
    target = out.cast(word)  # type: ignore[call-overload]
    width = len(source) // columns
    done = 0
    for run in range(piece.runs):
        first = piece.start + run * piece.stride
        for column in range(first, first + piece.rows):
            target[done : done + columns] = source[column::width]
            done += columns
