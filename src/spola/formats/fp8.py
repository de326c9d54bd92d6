"""FP8 weights (E4M3) of safetensors with their scales, as blocks that hold both.

A block is the f32 scale of 64 values of a row and their 64 codes: ``F8_E4M3`` of ``core.dtype``. Files keep
codes and scales in tensors of their own: one scale for the tensor, one per row, or one per square of 128 (or
64, 256) rows and columns; weights without a scale tensor get 1. Names and layouts are those of
compressed-tensors, fbgemm and the block-wise checkpoints (``weight_scale_inv``, which is multiplied with in
spite of its name). Scales of activations are not used: activations stay f32. Does not decode codes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from struct import unpack

from spola.core.dtype import BY_NAME
from spola.formats.files import file_error, quoted
from spola.formats.tensors import TensorEntry, UnsupportedTensor

__all__ = ["Fp8Tensor", "find_fp8"]

DTYPE = BY_NAME["F8_E4M3"]
_WORDS = DTYPE.block_bytes // 4
_SCALES = ("_scale", "_scale_inv")
_UNUSED = (".input_scale", ".input_scale_ub", ".activation_scale")
_SQUARES = (128, 64, 256)


@dataclass(frozen=True, slots=True)
class Fp8Tensor:
    """``codes``: where the bytes lie, a row after the other. ``scale``: its scales; None: all are 1."""

    codes: TensorEntry
    scale: TensorEntry | None

    @property
    def entry(self) -> TensorEntry:
        """The tensor as blocks."""
        c = self.codes
        size = c.nbytes // DTYPE.block * DTYPE.block_bytes
        return TensorEntry(c.name, DTYPE, c.shape, c.offset, size, c.path)

    def block_scales(self, values: array[float], first: int, count: int) -> array[float]:
        """The scales of blocks ``first`` to ``first + count``; ``values``: the numbers of ``scale``."""
        per_row = self.codes.shape[-1] // DTYPE.block
        rows = prod(self.codes.shape[:-1])
        begin, end = first // per_row, -(-(first + count) // per_row)
        out = array("f")
        if len(values) == 1:
            return values * count
        square = _square(self)
        for row in range(begin, end):
            if square is None:
                out.extend(values[row * len(values) // rows : row * len(values) // rows + 1] * per_row)
                continue
            width = -(-self.codes.shape[-1] // square)
            at = row // square * width
            out.extend(values[at + i * DTYPE.block // square] for i in range(per_row))
        skip = first - begin * per_row
        return out[skip : skip + count]

    def compose(self, start: int, size: int, read: Callable[[TensorEntry, int, int], bytearray]) -> bytearray:
        """Bytes ``start`` to ``start + size`` of the blocks. ``read``: (entry, first byte, bytes)."""
        first = start // DTYPE.block_bytes
        count = -(-(start + size) // DTYPE.block_bytes) - first
        values = array("f", [1.0]) if self.scale is None else _floats(self.scale, read)
        codes = memoryview(read(self.codes, first * DTYPE.block, count * DTYPE.block)).cast("I")
        blocks = bytearray(count * DTYPE.block_bytes)
        out = memoryview(blocks).cast("I")
        out[::_WORDS] = memoryview(self.block_scales(values, first, count)).cast("B").cast("I")
        for word in range(1, _WORDS):
            out[word::_WORDS] = codes[word - 1 :: _WORDS - 1]
        out.release()
        skip = start - first * DTYPE.block_bytes
        return blocks if skip == 0 and len(blocks) == size else blocks[skip : skip + size]


def find_fp8(
    tensors: dict[str, TensorEntry], others: dict[str, UnsupportedTensor]
) -> tuple[dict[str, Fp8Tensor], list[str]]:
    """The E4M3 tensors among ``others`` that can be used, by name, and those among them without scales.

    Takes them out of ``others``, and their scales out of ``tensors``. Raises ModelError naming a scale tensor
    that does not fit.
    """
    found, unscaled = {}, []
    for name, other in list(others.items()):
        if other.type_name != "F8_E4M3" or len(other.shape) < 2 or other.shape[-1] % DTYPE.block:
            continue
        del others[name]
        codes = TensorEntry(name, DTYPE, other.shape, other.offset, prod(other.shape), other.path)
        scale = next((tensors.pop(name + end) for end in _SCALES if name + end in tensors), None)
        unread = next((others[name + end] for end in _SCALES if name + end in others), None)
        if unread is not None:
            problem = f"tensor {quoted(unread.name)} holds scales of type {unread.type_name}"
            raise file_error(unread.path, f"{problem}; they must be F32, F16 or BF16")
        found[name] = Fp8Tensor(codes, scale)
        if scale is None:
            unscaled.append(name)
        elif scale.elements != 1 and not _by_row(found[name]) and _square(found[name]) is None:
            problem = f"tensor {quoted(scale.name)} of shape {scale.shape} has no scale for each tensor,"
            raise file_error(scale.path, f"{problem} row or square block of {quoted(name)} {other.shape}")
    if found:
        for name in [n for n in tensors if n.endswith(_UNUSED)]:
            del tensors[name]
    return found, unscaled


def _by_row(tensor: Fp8Tensor) -> bool:
    assert tensor.scale is not None
    outer = tensor.codes.shape[:-1]
    return tensor.scale.shape in (outer, (*outer, 1), (prod(outer),), (prod(outer), 1))


def _square(tensor: Fp8Tensor) -> int | None:
    """Rows and columns that share a scale; None where rows have one each."""
    assert tensor.scale is not None
    if _by_row(tensor) or len(tensor.codes.shape) != 2:
        return None
    rows, columns = tensor.codes.shape
    shapes: Mapping[tuple[int, ...], int] = {(-(-rows // b), -(-columns // b)): b for b in reversed(_SQUARES)}
    return shapes.get(tensor.scale.shape)


def _floats(entry: TensorEntry, read: Callable[[TensorEntry, int, int], bytearray]) -> array[float]:
    data = read(entry, 0, entry.nbytes)
    match entry.dtype.name:
        case "F32":
            out = array("f")
            out.frombytes(data)
        case "F16":
            out = array("f", unpack(f"<{len(data) // 2}e", data))
        case "BF16":
            wide = bytearray(2 * len(data))
            wide[2::4], wide[3::4] = data[::2], data[1::2]
            out = array("f")
            out.frombytes(wide)
        case other:
            raise AssertionError(other)
    return out
