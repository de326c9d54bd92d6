"""A GGUF file's tensors against those of the folder it was made from: rows of each, value by value.

The folder's rows are taken in the order that the architecture has in GGUF, so that a file whose q and k were
not reordered, whose norms lost their offset or whose parts were exchanged is found by name. Quantized values
may differ by what their type loses; a factor on all of them may not. Needs no NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod, sqrt
from operator import mul

from spola.formats.tensors import TensorSource
from spola.load.opened import Model
from spola.load.weights import Converter, convert_tensor, read_rows, source_dtypes
from spola.spec.gguf_layout import Planned, gguf_layout
from spola.spec.manifest import TensorInfo
from spola.spec.sources import Piece, Source

__all__ = ["compare_weights"]

_ROWS = 16  # of each matrix
# Root mean square error of a type, relative to the values, with room for calibrated ones.
_LOSS = {"F32": 1e-6, "F16": 2e-3, "BF16": 6e-3, "Q8_0": 0.02, "Q6_K": 0.05, "Q5_K": 0.08, "Q5_1": 0.08}
_COARSE = 0.25
_FACTOR = 0.012  # of the least-squares factor between both


def compare_weights(gguf: Model, folder: Model, arch: str, convert: Converter) -> list[str]:
    """Tensors of ``gguf`` that are not those of ``folder``, one line each."""
    problems = []
    for plan in gguf_layout(folder.spec, folder.sources, arch):
        if plan.name not in gguf.file.tensors:
            problems.append(f"tensor {plan.name} is missing")
            continue
        entry = gguf.file.entry(plan.name)
        if prod(entry.shape) != prod(plan.info.shape):
            problems.append(
                f"tensor {plan.name} has shape {list(entry.shape)}, expected {list(plan.info.shape)}"
            )
            continue
        line = _compare(gguf.file, folder.file, plan, entry.dtype.name, convert)
        if line:
            problems.append(line)
    return problems


def _compare(gguf: TensorSource, folder: TensorSource, plan: Planned, dtype: str, convert: Converter) -> str:
    info = plan.info
    rows = prod(info.shape[:-1]) if len(info.shape) > 1 else info.shape[0]
    picked = sorted({rows * i // _ROWS for i in range(_ROWS)}) if len(info.shape) > 1 else list(range(rows))
    whole = (Piece(plan.name, 0, rows, rows),)
    mine = _values(gguf, _some(info, picked), _at(whole, picked), convert)
    theirs = _values(folder, _some(info, picked), _at(plan.source, picked), convert)
    if plan.add:
        theirs = [value + plan.add for value in theirs]
    square = sum(map(mul, theirs, theirs))
    if square == 0.0:
        return "" if sum(map(mul, mine, mine)) == 0.0 else f"tensor {plan.name} is not zero, as in the folder"
    error = sqrt(sum((a - b) ** 2 for a, b in zip(mine, theirs, strict=True)) / square)
    factor = sum(map(mul, mine, theirs)) / square
    if error > _LOSS.get(dtype, _COARSE):
        return f"tensor {plan.name} ({dtype}) differs from the folder's by {error:.1%} of its values"
    if abs(factor - 1.0) > _FACTOR:
        return f"tensor {plan.name} ({dtype}) is {factor:.3f} times the folder's"
    return ""


def _some(info: TensorInfo, picked: Sequence[int]) -> TensorInfo:
    shape = (len(picked), info.shape[-1]) if len(info.shape) > 1 else (len(picked),)
    return replace(info, shape=shape)


def _at(source: Source, picked: Sequence[int]) -> Source:
    """The rows ``picked`` (ascending) of what ``source`` makes."""
    return tuple(_rows(source, picked))


def _rows(source: Source, picked: Sequence[int]) -> Iterator[Piece]:
    wanted = iter(picked)
    index = next(wanted, None)
    before = 0
    for piece in source:
        count = piece.rows * piece.runs
        while index is not None and index < before + count:
            run, row = divmod(index - before, piece.rows)
            yield Piece(piece.name, piece.start + run * piece.stride + row, 1, 1, transposed=piece.transposed)
            index = next(wanted, None)
        before += count


def _values(file: TensorSource, info: TensorInfo, source: Source, convert: Converter) -> list[float]:
    stored = source_dtypes(file, {info.name: source})[info.name]
    if stored == "F32":
        parts = [bytes(part) for part in read_rows(file, info, source)]
    else:
        parts = [bytes(part) for part in convert_tensor(file, info, source, "F32", convert)]
    return [value for part in parts for value in memoryview(part).cast("f")]
