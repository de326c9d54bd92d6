"""A GGUF model, in one file or in shards: its metadata, its tensors and their bytes.

Metadata are plain Python values; tensor data are read on demand with ``preadv``, nothing is mapped. Does not
decode blocks and does not interpret metadata.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

from spola.formats.gguf_split import Shard, open_shards
from spola.formats.gguf_types import FieldType, ValueType
from spola.formats.tensors import TensorEntry, TensorSource, UnsupportedTensor

__all__ = ["FieldType", "GgufFile", "TensorEntry", "UnsupportedTensor", "ValueType", "open_gguf"]


def open_gguf(path: str | os.PathLike[str], *, allow_unsupported: bool = False) -> GgufFile:
    """Open the model at ``path``: a GGUF file, any shard of a split model, or a folder holding one model.

    Raises ModelError for anything missing or malformed, and for a tensor of a type that spola cannot
    decode unless ``allow_unsupported``, which lists those in ``GgufFile.unsupported``.
    """
    return GgufFile(open_shards(Path(path), allow_unsupported=allow_unsupported))


class GgufFile(TensorSource):
    """An open GGUF model, one file or several shards.

    ``metadata``: key -> int, float, bool, str or list of them, of the first shard; bytes that are not UTF-8
    in *lists* of strings (vocabularies) are kept as surrogates: ``encode("utf-8", "surrogateescape")``
    restores them. ``types``: key -> how the value is stored. ``alignment`` and ``version`` are those of the
    first shard.
    """

    def __init__(self, shards: list[Shard]) -> None:
        """Take over the open ``shards``, which ``open_shards`` has checked."""
        first = shards[0].header
        tensors: dict[str, TensorEntry] = {}
        unsupported: dict[str, UnsupportedTensor] = {}
        for shard in shards:
            tensors.update(shard.header.tensors)
            unsupported.update(shard.header.unsupported)
        super().__init__([shard.file for shard in shards], tensors, unsupported)
        self.version: int = first.version
        self.alignment: int = first.alignment
        self.metadata: dict[str, Any] = first.metadata
        self.types: dict[str, FieldType] = first.types
        self.fingerprint: str = _fingerprint(shards)

    def drop_lists(self) -> None:
        """Let go of the lists among the metadata, which are most of a header: tensors can still be read."""
        for key in [key for key, value in self.metadata.items() if isinstance(value, list)]:
            del self.metadata[key]


def _fingerprint(shards: list[Shard]) -> str:
    """A hash over headers, sizes and times of change: equal for an unchanged model, cheap for a large one."""
    state = blake2b(digest_size=16)
    for shard in shards:
        state.update(shard.header.digest)
        state.update(f"{shard.file.size} {shard.file.mtime_ns};".encode())
    return state.hexdigest()
