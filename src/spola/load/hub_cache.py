"""The cache that huggingface_hub keeps, read: repositories, snapshots, and the models in them.

``models--ORG--NAME`` holds ``blobs``, ``snapshots/COMMIT`` with links to them, and ``refs/main``, which names
the current commit. Fetches and writes nothing, and needs the library for nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from spola.core.errors import ConfigError
from spola.core.paths import cache_root
from spola.load.pick import first_shards

__all__ = ["files_of", "hub_cache", "is_folder", "repositories", "snapshots"]

_COMMIT = re.compile(r"[0-9a-f]{4,64}")


def hub_cache() -> Path:
    """Where huggingface_hub keeps models, by its own environment variables."""
    direct = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = os.environ.get("HF_HOME")
    try:
        if direct:
            return Path(direct).expanduser()
        return (Path(home).expanduser() if home else cache_root() / "huggingface") / "hub"
    except RuntimeError:
        raise ConfigError(
            f"{'HF_HUB_CACHE' if direct else 'HF_HOME'} {direct or home!r} names no home folder"
        ) from None


def repositories() -> list[str]:
    """``org/name`` of all that is in the cache, whole or not."""
    folders = sorted(path.name for path in hub_cache().glob("models--*--*") if path.is_dir())
    return [name.removeprefix("models--").replace("--", "/", 1) for name in folders]


def snapshots(repository: str) -> list[Path]:
    """Folders of ``org/name``: that of ``refs/main``, then the others, latest first."""
    base = hub_cache() / f"models--{repository.replace('/', '--')}"
    try:
        current = (base / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        current = ""  # a download by commit leaves no reference
    try:
        found = [path for path in (base / "snapshots").iterdir() if _COMMIT.fullmatch(path.name)]
        return sorted(found, key=lambda path: (path.name != current, -path.stat().st_mtime))
    except OSError:
        return []


def files_of(snapshot: Path) -> list[Path]:
    """GGUF models in a snapshot: first shards only, no vision projectors, no links whose blob is gone."""
    paths = [path for path in snapshot.rglob("*.gguf") if path.is_file()]
    return [snapshot / name for name in first_shards(path.relative_to(snapshot).as_posix() for path in paths)]


def is_folder(snapshot: Path) -> bool:
    """Whether it is a safetensors model."""
    return (snapshot / "config.json").is_file() and any(p.is_file() for p in snapshot.glob("*.safetensors"))
