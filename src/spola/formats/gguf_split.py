"""Models split over several GGUF files: from a file or folder to the checked list of shards.

Shards are named ``PREFIX-00001-of-00003.gguf`` (counted from 1) and hold ``split.no`` (from 0),
``split.count`` and ``split.tensors.count``, as llama.cpp's gguf-split writes them. Shards are found by name
only, in the folder of the file given.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spola.formats.files import RegularFile, file_error, quoted
from spola.formats.gguf_read import Header, read_header
from spola.formats.gguf_types import MAX_TENSORS

__all__ = ["MAX_SHARDS", "SPLIT_COUNT", "SPLIT_NO", "SPLIT_TENSORS", "Shard", "open_shards", "shard_path"]

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
MAX_SHARDS = 512
_SHARD_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shard:
    """One open file of a model and its header."""

    file: RegularFile
    header: Header


def shard_path(folder: Path, prefix: str, index: int, count: int) -> Path:
    """The path of shard ``index``, counted from 0."""
    return folder / f"{prefix}-{index + 1:05d}-of-{count:05d}.gguf"


def open_shards(path: Path, *, allow_unsupported: bool = False) -> list[Shard]:
    """Open the model at ``path``: a file, any shard of a set, or a folder that holds one model.

    Gives the shards in order; a model in one file is a single shard. Raises ModelError, with every file
    closed again, for a shard that is missing, malformed, misnamed or of another set.
    """
    chosen = _choose(path) if os.path.isdir(path) else path
    with ExitStack() as stack:

        def opened(place: Path) -> Shard:
            file = stack.enter_context(RegularFile(place))
            return Shard(file, read_header(file, allow_unsupported=allow_unsupported))

        first = opened(chosen)
        places = _places(first)
        shards = [first if place == chosen else opened(place) for place in places]
        _check_set(shards)
        stack.pop_all()
        return shards


def _integer(shard: Shard, key: str, default: int | None = None) -> int:
    value: Any = shard.header.metadata.get(key, default)
    if value is None:
        raise file_error(shard.file.path, f"metadata '{key}' is missing from this shard")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise file_error(
            shard.file.path, f"metadata '{key}' must be a whole number, not {quoted(str(value))}"
        )
    return value


def _places(shard: Shard) -> list[Path]:
    """The paths of all shards of the set that ``shard`` belongs to; they exist."""
    path = shard.file.path
    count = _integer(shard, SPLIT_COUNT, 1)
    match = _SHARD_NAME.fullmatch(path.name)
    named = int(match["count"]) if match else 1
    if count <= 1 and named <= 1:
        return [path]
    if match is None:
        raise file_error(path, f"is one of {count} shards, but is not named NAME-00001-of-{count:05d}.gguf")
    if count != named:
        raise file_error(path, f"is named as one of {named} shards, but its '{SPLIT_COUNT}' is {count}")
    if count > MAX_SHARDS:
        raise file_error(path, f"'{SPLIT_COUNT}' is {count}; the limit is {MAX_SHARDS}")
    places = [shard_path(path.parent, match["prefix"], index, count) for index in range(count)]
    if path not in places:
        raise file_error(path, f"is named shard {int(match['number'])} of {count}; shards count from 1")
    for index, place in enumerate(places):
        if not os.path.exists(place):
            raise file_error(place, f"shard {index + 1} of {count} is missing")
    return places


def _check_set(shards: list[Shard]) -> None:
    count = len(shards)
    if count == 1:
        return
    total = sum(len(s.header.tensors) + len(s.header.unsupported) for s in shards)
    owner: dict[str, Path] = {}
    for index, shard in enumerate(shards):
        path = shard.file.path
        number = _integer(shard, SPLIT_NO)
        if number != index:
            raise file_error(
                path,
                f"is named shard {index + 1} of {count}, but its '{SPLIT_NO}' says it is shard {number + 1}"
                " (renamed or swapped?)",
            )
        if _integer(shard, SPLIT_COUNT) != count:
            raise file_error(path, f"its '{SPLIT_COUNT}' is not {count} as in the other shards")
        for name in (*shard.header.tensors, *shard.header.unsupported):
            if name in owner:
                raise file_error(path, f"tensor {quoted(name)} is also in {owner[name].name}")
            owner[name] = path
    for shard in shards:
        expected = _integer(shard, SPLIT_TENSORS, total)
        if expected != total or total > MAX_TENSORS:
            raise file_error(
                shard.file.path,
                f"its '{SPLIT_TENSORS}' is {expected}, but the {count} shards hold {total} tensors",
            )


def _choose(folder: Path) -> Path:
    """The one model in ``folder``: its only GGUF file, or the first present shard of its only set."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))
    except OSError as error:
        raise file_error(folder, f"cannot be listed: {error.strerror}") from error
    if not names:
        raise file_error(folder, "is a directory without a .gguf file")
    models: dict[str, str] = {}
    for name in names:
        match = _SHARD_NAME.fullmatch(name)
        model = f"{match['prefix']}-of-{match['count']}" if match else name
        models.setdefault(model, name)
    if len(models) > 1:
        shown = ", ".join(quoted(name) for name in list(models.values())[:5])
        shown += ", ..." if len(models) > 5 else ""
        raise file_error(folder, f"holds {len(models)} models ({shown}); name one of the files")
    return folder / next(iter(models.values()))
