"""The tensors of open files, whatever the format: where they lie, and their bytes on demand.

Nothing is mapped; bytes are read with ``preadv``. Does not decode blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from spola.core.closing import Closing
from spola.core.dtype import DType
from spola.core.errors import ModelError
from spola.formats.files import RegularFile, file_error, path_text, quoted

__all__ = ["TensorEntry", "TensorSource", "UnsupportedTensor", "check_range", "unsupported_error"]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies.

    ``shape`` is row-major (outermost first), the reverse of the order on disk. ``offset`` is absolute
    in the file ``path``; both it and ``nbytes`` were checked against the size of that file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: Path

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class UnsupportedTensor:
    """A tensor of a type spola cannot decode; listed by ``inspect``, never loaded."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    path: Path


def unsupported_error(tensor: UnsupportedTensor) -> ModelError:
    problem = f"tensor {quoted(tensor.name)} has type {tensor.type_name}, which spola does not support"
    return file_error(tensor.path, problem)


class TensorSource(Closing):
    """Open files and their tensors. Use as a context manager, or ``close()``; safe from several threads.

    ``tensors``: name -> TensorEntry, in file order. ``unsupported``: name -> UnsupportedTensor, those of
    types that spola cannot decode. ``paths``: the files.
    """

    def __init__(
        self,
        files: list[RegularFile],
        tensors: dict[str, TensorEntry],
        unsupported: dict[str, UnsupportedTensor],
    ) -> None:
        """Take over the open ``files``; every tensor lies in one of them."""
        self.paths: tuple[Path, ...] = tuple(file.path for file in files)
        self.tensors = tensors
        self.unsupported = unsupported
        self._files = {file.path: file for file in files}

    @property
    def files(self) -> tuple[RegularFile, ...]:
        """The open files, in the order of ``paths``."""
        return tuple(self._files.values())

    @property
    def path(self) -> Path:
        """The file, or the first shard."""
        return self.paths[0]

    def entry(self, name: str) -> TensorEntry:
        """The tensor called ``name``; ModelError when there is none, or it has an unsupported type."""
        if name in self.unsupported:
            raise unsupported_error(self.unsupported[name])
        try:
            return self.tensors[name]
        except KeyError:
            raise file_error(self.path, f"has no tensor {quoted(name)}") from None

    def read(self, name: str) -> bytearray:
        """All bytes of a tensor as stored. Raises ModelError for an unknown name or a file cut meanwhile."""
        return self.read_range(name, 0, self.entry(name).nbytes)

    def read_range(self, name: str, start: int, count: int) -> bytearray:
        """``count`` bytes of a tensor from byte ``start`` of it; ValueError when outside of the tensor."""
        entry = self.entry(name)
        check_range(entry, start, count)
        return self._file(entry).read(entry.offset + start, count)

    def read_into(self, name: str, buffer: memoryview, start: int = 0) -> None:
        """Fill ``buffer`` (writable, contiguous) with bytes of a tensor from byte ``start`` of it."""
        entry = self.entry(name)
        check_range(entry, start, buffer.nbytes)
        self._file(entry).read_into(entry.offset + start, buffer.cast("B"))

    def close(self) -> None:
        """Close the files; metadata and the table of tensors stay usable."""
        for file in self._files.values():
            file.close()

    def _file(self, entry: TensorEntry) -> RegularFile:
        file = self._files[entry.path]
        if file.closed:
            raise ModelError(
                f"{path_text(entry.path)}: was closed before tensor {quoted(entry.name)} was read"
            )
        return file


def check_range(entry: TensorEntry, start: int, count: int) -> None:
    """ValueError unless bytes ``start`` to ``start + count`` are of the tensor."""
    if start < 0 or count < 0 or start + count > entry.nbytes:
        raise ValueError(f"bytes {start}..{start + count} are outside of {entry.name}, {entry.nbytes} bytes")
