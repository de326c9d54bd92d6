"""Models that other programs keep on this disk: Ollama's store and LM Studio's folder. Reads, never writes.

Ollama: ``manifests/HOST/NAMESPACE/MODEL/TAG`` is JSON whose layer of type ``...image.model`` names a blob by
its SHA-256; the blob is the GGUF file. LM Studio: ``models/PUBLISHER/MODEL/*.gguf``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spola.core.errors import ConfigError, ModelError
from spola.formats.json_file import read_json
from spola.load.pick import first_shards

__all__ = ["lmstudio_models", "ollama_model", "ollama_models"]

_MODEL_LAYER = "application/vnd.ollama.image.model"
_OTHER_LAYERS = ("application/vnd.ollama.image.adapter", "application/vnd.ollama.image.projector")
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_PART = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_REGISTRY = "registry.ollama.ai"


def ollama_model(name: str) -> tuple[Path, list[str]]:
    """The GGUF blob of ``name`` (``llama3.2``, ``llama3.2:1b``, ``user/model:tag``), and warnings.

    Raises ConfigError saying what is there instead, or which file of the store is broken.
    """
    base, _, tag = name.partition(":")
    parts = base.split("/")
    if not 1 <= len(parts) <= 3 or not all(_PART.fullmatch(part) for part in [*parts, tag or "latest"]):
        raise ConfigError(f"ollama:{name[:80]}: is no name of an Ollama model; write MODEL or MODEL:TAG")
    host, namespace, model = ([_REGISTRY, "library", *parts] if len(parts) == 1 else [_REGISTRY, *parts])[-3:]
    for store in _stores():
        manifest = store / "manifests" / host / namespace / model / (tag or "latest")
        if manifest.is_file():
            return _blob(store, manifest, name)
    there = ", ".join(found for found, _ in ollama_models()) or "none"
    raise ConfigError(f"ollama:{name}: is not in Ollama's store; there are: {there[:400]}")


def ollama_models() -> Iterator[tuple[str, Path]]:
    """(name, blob) of every complete model in Ollama's store."""
    for store in _stores():
        root = store / "manifests"
        for manifest in sorted(root.glob("*/*/*/*")):
            host, namespace, model, tag = manifest.relative_to(root).parts
            named = model if (host, namespace) == (_REGISTRY, "library") else f"{namespace}/{model}"
            named = named if host == _REGISTRY else f"{host}/{named}"
            if not manifest.is_file():
                continue
            try:
                yield f"{named}:{tag}", _blob(store, manifest, named)[0]
            except ConfigError:
                continue


def lmstudio_models() -> Iterator[tuple[str, Path]]:
    """(publisher/model:file, path) of every GGUF model in LM Studio's folders."""
    for root in _studios():
        names = [path.relative_to(root).as_posix() for path in root.glob("*/*/*.gguf")]
        for name in first_shards(names):
            model, _, file = name.rpartition("/")
            yield f"{model}:{file.removesuffix('.gguf')}", root / name


def _stores() -> list[Path]:
    named = os.environ.get("OLLAMA_MODELS")
    if named:
        return [Path(named).expanduser()]
    return [*_in_home(".ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def _studios() -> list[Path]:
    """Where LM Studio keeps models: below the folder that its pointer file names, or a default one."""
    pointer = _in_home(".lmstudio-home-pointer")
    try:
        homes = [Path(text) / "models" for path in pointer if (text := path.read_text("utf-8").strip())]
    except (OSError, ValueError):
        homes = []
    return list(dict.fromkeys([*homes, *_in_home(".lmstudio/models", ".cache/lm-studio/models")]))


def _in_home(*places: str) -> list[Path]:
    try:
        home = Path.home()
    except RuntimeError:  # a user who has none
        return []
    return [home / place for place in places]


def _blob(store: Path, manifest: Path, name: str) -> tuple[Path, list[str]]:
    try:
        layers: Any = read_json(manifest).get("layers")
    except ModelError as error:
        raise ConfigError(f"ollama:{name}: {error}") from None
    rows = [row for row in layers or () if isinstance(row, dict)] if isinstance(layers, list) else []
    kinds = [str(row.get("mediaType", "")) for row in rows]
    models = [row for row, kind in zip(rows, kinds, strict=True) if kind == _MODEL_LAYER]
    if len(models) != 1:
        raise ConfigError(f"ollama:{name}: {manifest} names {len(models)} model files, one was expected")
    match = _DIGEST.fullmatch(str(models[0].get("digest", "")))
    if match is None:
        raise ConfigError(f"ollama:{name}: {manifest} names no SHA-256 of the model file")
    blob = store / "blobs" / f"sha256-{match[1]}"
    if not blob.is_file():
        raise ConfigError(f"ollama:{name}: {blob} is missing; pull the model again with Ollama")
    left_out = [kind.rsplit(".", 1)[-1] for kind in kinds if kind in _OTHER_LAYERS]
    return blob, [f"ollama:{name}: its {kind} is not used" for kind in left_out]
