"""A GGUF model, in one file or in shards: its metadata, its tensors and their bytes.

Metadata are plain Python values; tensor data are read on demand with ``preadv``, nothing is mapped. Does not
decode blocks and does not interpret metadata.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

from spola.core.errors import ModelError
from spola.formats.files import RegularFile, file_error, quoted
from spola.formats.gguf_split import Shard, open_shards
from spola.formats.gguf_types import FieldType, TensorEntry, UnsupportedTensor, ValueType

__all__ = ["FieldType", "GgufFile", "TensorEntry", "UnsupportedTensor", "ValueType", "open_gguf"]


def open_gguf(path: str | os.PathLike[str], *, allow_unsupported: bool = False) -> GgufFile:
    """Open the model at ``path``: a GGUF file, any shard of a split model, or a folder holding one model.

    Raises ModelError for anything missing or malformed, and for a tensor of a type that spola cannot
    decode unless ``allow_unsupported``, which lists those in ``GgufFile.unsupported``.
    """
    return GgufFile(open_shards(Path(path), allow_unsupported=allow_unsupported))


class GgufFile:
    """An open model. Use as a context manager, or ``close()`` it; reading is safe from several threads.

    ``metadata``: key -> int, float, bool, str or list of them, of the first shard; bytes that are not UTF-8
    in *lists* of strings (vocabularies) are kept as surrogates: ``encode("utf-8", "surrogateescape")``
    restores them. ``types``: key -> how the value is stored. ``tensors``: name -> TensorEntry, in file order.
    ``alignment`` and ``version`` are those of the first shard.
    """

    def __init__(self, shards: list[Shard]) -> None:
        """Take over the open ``shards``, which ``open_shards`` has checked."""
        first = shards[0].header
        self.paths: tuple[Path, ...] = tuple(shard.file.path for shard in shards)
        self.version: int = first.version
        self.alignment: int = first.alignment
        self.metadata: dict[str, Any] = first.metadata
        self.types: dict[str, FieldType] = first.types
        self.tensors: dict[str, TensorEntry] = {}
        self.unsupported: dict[str, UnsupportedTensor] = {}
        for shard in shards:
            self.tensors.update(shard.header.tensors)
            self.unsupported.update(shard.header.unsupported)
        self.fingerprint: str = _fingerprint(shards)
        self._files: dict[Path, RegularFile] = {shard.file.path: shard.file for shard in shards}

    @property
    def path(self) -> Path:
        """The file, or the first shard."""
        return self.paths[0]

    def entry(self, name: str) -> TensorEntry:
        """The tensor called ``name``; ModelError when there is none."""
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
        _check_range(entry, start, count)
        return self._file(entry).read(entry.offset + start, count)

    def read_into(self, name: str, buffer: memoryview, start: int = 0) -> None:
        """Fill ``buffer`` (writable, contiguous) with bytes of a tensor from byte ``start`` of it."""
        entry = self.entry(name)
        _check_range(entry, start, buffer.nbytes)
        self._file(entry).read_into(entry.offset + start, buffer.cast("B"))

    def close(self) -> None:
        """Close the files; metadata and the table of tensors stay usable."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _file(self, entry: TensorEntry) -> RegularFile:
        file = self._files[entry.path]
        if file.closed:
            raise ModelError(f"{entry.path}: was closed before tensor {quoted(entry.name)} was read")
        return file


def _check_range(entry: TensorEntry, start: int, count: int) -> None:
    if start < 0 or count < 0 or start + count > entry.nbytes:
        raise ValueError(f"bytes {start}..{start + count} are outside of {entry.name}, {entry.nbytes} bytes")


def _fingerprint(shards: list[Shard]) -> str:
    """A hash over headers, sizes and times of change: equal for an unchanged model, cheap for a large one."""
    state = blake2b(digest_size=16)
    for shard in shards:
        state.update(shard.header.digest)
        state.update(f"{shard.file.size} {shard.file.mtime_ns};".encode())
    return state.hexdigest()
