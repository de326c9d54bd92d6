"""The tensors of a model, one by one in manifest order, from files that merge, split or transpose them.

Copies whole rows, so it works for every storage type. Decodes nothing itself: a tensor that is wanted in
another type goes through the function given for that, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from spola.core.dtype import BY_NAME, DType, nbytes
from spola.core.errors import ModelError
from spola.core.runner import Tensor
from spola.formats.room import Room
from spola.formats.tensors import TensorSource
from spola.spec.manifest import TensorInfo
from spola.spec.sources import Piece, Source

__all__ = ["Converter", "convert_tensor", "iter_tensors", "read_rows", "source_dtypes"]

# (DType name, DType name wanted, rows, columns, data) -> the rows in the type wanted.
Converter = Callable[[str, str, int, int, Any], bytearray]

_WORDS = {2: "H", 4: "I"}
_PART = 16 << 20  # bytes of rows that are converted at a time


def source_dtypes(file: TensorSource, sources: Mapping[str, Source]) -> dict[str, str]:
    """Canonical name -> DType name. Raises ModelError for a tensor whose parts have different types."""
    return {name: _dtype(file, name, source).name for name, source in sources.items()}


def iter_tensors(
    file: TensorSource,
    infos: list[TensorInfo],
    sources: Mapping[str, Source],
    targets: Mapping[str, str] | None = None,
    convert: Converter | None = None,
) -> Iterator[Tensor]:
    """Each tensor of ``infos`` that has a source, in that order.

    What one looks at is its own as long as somebody holds it; memory of those that are dropped is used again.
    ``targets``: canonical name -> DType name of those that ``convert`` makes into another type.
    """
    room = Room()
    for info in infos:
        source = sources.get(info.name)
        if source is None:
            continue
        dtype = _dtype(file, info.name, source)
        target = (targets or {}).get(info.name, dtype.name)
        if target == dtype.name:
            yield Tensor(
                info.name, dtype.name, info.shape, _read(file, info, source, dtype, room).toreadonly()
            )
        else:
            assert convert is not None
            data = _converted(file, info, source, target, convert, room)
            yield Tensor(info.name, target, info.shape, data.toreadonly())


def convert_tensor(
    file: TensorSource, info: TensorInfo, source: Source, target: str, convert: Converter
) -> Iterator[bytearray]:
    """The tensor as rows of DType ``target``, in parts; a few megabytes of the file's rows are held at a
    time.

    Raises ModelError naming a tensor with values that cannot be stored so.
    """
    dtype = _dtype(file, info.name, source)
    columns = info.shape[-1] if len(info.shape) > 1 else 1
    for part in read_rows(file, info, source):
        rows = len(part) // nbytes(dtype, columns)
        shape = (rows, columns) if len(info.shape) > 1 else (1, rows)
        try:
            yield convert(dtype.name, target, *shape, part)
        except ValueError as error:
            raise ModelError(f"tensor {source[0].name} cannot be stored as {target}: {error}") from None


def _converted(
    file: TensorSource, info: TensorInfo, source: Source, target: str, convert: Converter, room: Room
) -> memoryview:
    out = room.take(nbytes(BY_NAME[target], prod(info.shape)))
    at = 0
    for part in convert_tensor(file, info, source, target, convert):
        out[at : at + len(part)] = part
        at += len(part)
    return out


def read_rows(file: TensorSource, info: TensorInfo, source: Source) -> Iterator[memoryview]:
    """The rows of the tensor as they are stored, from first to last, in parts of some megabytes."""
    dtype = _dtype(file, info.name, source)
    columns = info.shape[-1] if len(info.shape) > 1 else 1
    row = _row_bytes(source, dtype, columns)
    room = Room()
    waiting: list[tuple[str, int, int]] = []
    held = 0
    for piece in source:
        if piece.transposed:
            yield from _gathered(file, waiting, row, room)
            out = room.take(piece.rows * piece.runs * row)
            _transpose(file, piece, dtype, columns, out, room)
            yield out
            continue
        for name, start, count in _spans(piece, max(1, _PART // row)):
            waiting.append((name, start, count))
            held += count * row
            if held >= _PART:
                yield from _gathered(file, waiting, row, room)
                held = 0
    yield from _gathered(file, waiting, row, room)


def _spans(piece: Piece, most: int) -> Iterator[tuple[str, int, int]]:
    """(tensor, first row, rows) of each run, ``most`` rows at a time."""
    for run in range(piece.runs):
        first = piece.start + run * piece.stride
        for start in range(0, piece.rows, most):
            yield piece.name, first + start, min(most, piece.rows - start)


def _gathered(
    file: TensorSource, spans: list[tuple[str, int, int]], row: int, room: Room
) -> Iterator[memoryview]:
    """The rows of ``spans`` in one buffer; ``spans`` is empty afterwards."""
    if not spans:
        return
    out = room.take(sum(count for _, _, count in spans) * row)
    at = 0
    for name, start, count in spans:
        file.read_into(name, out[at : at + count * row], start * row)
        at += count * row
    spans.clear()
    yield out


def _dtype(file: TensorSource, name: str, source: Source) -> DType:
    dtypes = {piece.name: file.entry(piece.name).dtype for piece in source}
    first = next(iter(dtypes))
    for piece, dtype in dtypes.items():
        if dtype != dtypes[first]:
            other = f"{first}, with which it makes {name}, has {dtypes[first].name}"
            raise ModelError(f"tensor {piece} has type {dtype.name}, but {other}")
    return dtypes[first]


def _read(file: TensorSource, info: TensorInfo, source: Source, dtype: DType, room: Room) -> memoryview:
    if len(source) == 1 and _is_whole(info, source[0]):
        out = room.take(file.entry(source[0].name).nbytes)
        file.read_into(source[0].name, out)
        return out
    columns = info.shape[-1] if len(info.shape) > 1 else 1
    row = _row_bytes(source, dtype, columns)
    out = room.take(nbytes(dtype, prod(info.shape)))
    at = 0
    for piece in source:
        size = piece.rows * piece.runs * row
        part = out[at : at + size]
        if piece.transposed:
            _transpose(file, piece, dtype, columns, part, room)
        else:
            _runs(file, piece, row, part)
        at += size
    return out


def _row_bytes(source: Source, dtype: DType, columns: int) -> int:
    if columns % dtype.block:
        raise ModelError(f"tensor {source[0].name}: rows of {columns} do not fit its type {dtype.name}")
    return nbytes(dtype, columns)


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


def _transpose(
    file: TensorSource, piece: Piece, dtype: DType, columns: int, out: memoryview, room: Room
) -> None:
    """Rows of the transpose of ``columns`` rows of a matrix of plain numbers."""
    if dtype.block != 1:
        raise ModelError(
            f"tensor {piece.name} must be transposed, which its type {dtype.name} does not allow; "
            "use a file that a newer converter made, or one in F16 or BF16"
        )
    word = _WORDS[dtype.block_bytes]
    width = file.entry(piece.name).shape[-1]
    part = room.take(columns * nbytes(dtype, width))
    file.read_into(piece.name, part, piece.below * nbytes(dtype, width))
    source = part.cast(word)  # type: ignore[call-overload]
    target = out.cast(word)  # type: ignore[call-overload]
    done = 0
    for run in range(piece.runs):
        first = piece.start + run * piece.stride
        for column in range(first, first + piece.rows):
            target[done : done + columns] = source[column::width]
            done += columns
