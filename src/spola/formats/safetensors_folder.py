"""The safetensors files of a Hugging Face folder as one table: a single file, or shards and their index.

The index decides: tensors and files that it does not name are not read. Pickled weights never are.
"""

from __future__ import annotations

from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

from spola.core.errors import ModelError
from spola.formats.files import file_error, quoted
from spola.formats.fp8 import Fp8Tensor, find_fp8
from spola.formats.json_file import read_json
from spola.formats.safetensors import SafetensorsFile, open_safetensors
from spola.formats.tensors import TensorEntry, TensorSource, UnsupportedTensor, check_range

__all__ = ["INDEX", "FolderTensors", "open_folder"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_SHARDS = 4096
_INDEX_LIMIT = 64 << 20
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class FolderTensors(TensorSource):
    """The tensors of a folder. ``fingerprint``: a hash of the tables, sizes and times of change.

    FP8 weights are blocks that hold codes and scales; ``unscaled``: those that have no scale tensor.
    """

    def __init__(
        self,
        parts: list[SafetensorsFile],
        tensors: dict[str, TensorEntry],
        unsupported: dict[str, UnsupportedTensor],
    ) -> None:
        self._fp8, self.unscaled = find_fp8(tensors, unsupported)
        tensors.update({name: fp8.entry for name, fp8 in self._fp8.items()})
        super().__init__([file for part in parts for file in part.files], tensors, unsupported)
        state = blake2b(digest_size=16)
        for part in parts:
            for file in part.files:
                state.update(f"{file.path.name} {file.size} {file.mtime_ns};".encode())
        for entry in tensors.values():
            state.update(f"{entry.name} {entry.dtype.name} {entry.shape} {entry.offset};".encode())
        self.fingerprint = state.hexdigest()

    def read_range(self, name: str, start: int, count: int) -> bytearray:
        fp8 = self._fp8.get(name)
        return super().read_range(name, start, count) if fp8 is None else self._blocks(fp8, start, count)

    def read_into(self, name: str, buffer: memoryview, start: int = 0) -> None:
        fp8 = self._fp8.get(name)
        if fp8 is None:
            super().read_into(name, buffer, start)
        else:
            buffer.cast("B")[:] = self._blocks(fp8, start, buffer.nbytes)

    def _blocks(self, fp8: Fp8Tensor, start: int, count: int) -> bytearray:
        check_range(fp8.entry, start, count)
        return fp8.compose(start, count, lambda entry, at, n: self._file(entry).read(entry.offset + at, n))


def open_folder(folder: Path) -> FolderTensors:
    """Open the weights in ``folder``.

    Raises ModelError naming the file: a shard that is missing or named outside of the folder, a tensor that
    its shard does not hold, weights that are only there in pickled form.
    """
    index = folder / INDEX
    with ExitStack() as stack:
        if index.exists() or index.is_symlink():
            opened = _sharded(folder, index, stack)
        else:
            part = open_safetensors(_single(folder))
            stack.callback(part.close)
            opened = FolderTensors([part], dict(part.tensors), dict(part.unsupported))
        stack.pop_all()
    return opened


def _single(folder: Path) -> Path:
    path = folder / SINGLE
    if path.exists() or path.is_symlink():
        return path
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(p.name for p in found[:4]) + (", ..." if len(found) > 4 else "")
        raise file_error(folder, f"holds {len(found)} .safetensors files ({names}) but no {INDEX}")
    pickled = next((p for pattern in _PICKLED for p in sorted(folder.glob(pattern))), None)
    if pickled is not None:
        raise file_error(
            folder, f"holds weights as {pickled.name} only, which is pickled; safetensors are needed"
        )
    raise file_error(folder, "holds no .safetensors file")


def _sharded(folder: Path, index: Path, stack: ExitStack) -> FolderTensors:
    table = _weight_map(index)
    shards: dict[str, SafetensorsFile] = {}
    tensors: dict[str, TensorEntry] = {}
    unsupported: dict[str, UnsupportedTensor] = {}
    for name, shard in table.items():
        if shard not in shards:
            if len(shards) == _MAX_SHARDS:
                raise file_error(index, f"names more than {_MAX_SHARDS} files")
            shards[shard] = _open_shard(folder / shard, index)
            stack.callback(shards[shard].close)
        part = shards[shard]
        if name in part.tensors:
            tensors[name] = part.tensors[name]
        elif name in part.unsupported:
            unsupported[name] = part.unsupported[name]
        else:
            raise file_error(part.path, f"has no tensor {quoted(name)}, which {index.name} says it holds")
    return FolderTensors(list(shards.values()), tensors, unsupported)


def _open_shard(path: Path, index: Path) -> SafetensorsFile:
    try:
        return open_safetensors(path)
    except ModelError:
        if path.exists():
            raise
        raise file_error(
            path, f"no such file, but {index.name} names it; the download is incomplete"
        ) from None


def _weight_map(index: Path) -> dict[str, str]:
    table = read_json(index, _INDEX_LIMIT).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise file_error(index, "has no weight_map")
    for name, shard in table.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise file_error(
                index, f"says that tensor {quoted(name)} is in {quoted(str(shard))}, which is no file name"
            )
    return table


def _is_plain(name: str) -> bool:
    """A name within the folder: no separator of any system, no parent, nothing that cannot be typed."""
    return name.endswith(".safetensors") and name.isprintable() and not any(c in name for c in "/\\:\0")
