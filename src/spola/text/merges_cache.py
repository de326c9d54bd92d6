"""A small cache of derived merges, because deriving them from 262,000 scores takes more than a second.

One file per vocabulary under ``$XDG_CACHE_HOME/spola/merges`` (``~/.cache`` if unset), named by a hash of
what the merges depend on. A cache that cannot be read or written, or that is damaged, is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from array import array
from collections.abc import Mapping
from pathlib import Path

from spola.core.paths import cache_root

__all__ = ["load", "path_of", "store"]

_MAGIC = b"spola merges 1\n"


def path_of(key: str, environ: Mapping[str, str] | None = None) -> Path:
    """Where the merges of the vocabulary ``key`` (a hex digest) are kept."""
    return cache_root(environ) / "spola" / "merges" / f"{key}.bin"


def load(path: Path, n_tokens: int) -> array[int] | None:
    """The pairs stored at ``path`` (left, right, left, …), or None if there are none that can be used."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError):
        return None
    head, body = data[: len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(body).digest() or len(body) % 8:
        return None
    pairs = array("i")
    pairs.frombytes(body)
    if pairs and not (min(pairs) >= 0 and max(pairs) < n_tokens):
        return None
    return pairs


def store(path: Path, pairs: array[int]) -> None:
    """Write ``pairs`` to ``path`` in one step; a failure is not worth an error."""
    body = pairs.tobytes()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(body).digest() + body)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
