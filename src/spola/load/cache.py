"""The user's cache folder: models fetched by ``spola pull`` and figures kept between runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from spola.core.paths import cache_root

__all__ = ["cache_folder", "write_atomically"]


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/spola``, or ``~/.cache/spola``. Not created here."""
    return cache_root() / "spola"


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
