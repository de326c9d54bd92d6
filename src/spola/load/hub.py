"""The Hugging Face hub: which file of a repository is meant, and bringing it into the hub's own cache.

Asking, tokens, endpoints and offline work are ``huggingface_hub``'s, by its own environment variables. The
bytes come by ``load.transfer``: the library's downloads start anew in each process, ours go on. Files lie as
the library lays them out (``blobs``, ``snapshots/COMMIT``, ``refs``), so that every other program finds them.
Opens no model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from spola.core.errors import ConfigError
from spola.load.cache import write_atomically
from spola.load.hub_cache import hub_cache, snapshots
from spola.load.hub_errors import in_one_line
from spola.load.pick import first_shards, pick, shards_of
from spola.load.transfer import Remote, check, fetch, partial_bytes

__all__ = ["Plan", "download", "fetch_one", "is_offline", "look_up"]

_FOLDER_FILES = re.compile(
    r"[^/]+\.safetensors|model\.safetensors\.index\.json|(?:generation_)?config\.json|tokenizer(?:_config)?\.json"
    r"|tokenizer\.model|tekken\.json|chat_template\.(?:json|jinja)|special_tokens_map\.json|vocab\.json|merges\.txt"
)
# Second copies of the weights that some repositories keep beside the first.
_OTHER_WEIGHTS = re.compile(r"consolidated.*\.safetensors|.*adapter_model\.safetensors")
_HEX = re.compile(r"[0-9a-f]{40,64}")

# (file, "fetching" or "checking", bytes done)
Progress = Callable[[Remote, str, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to download: ``files`` of ``repository`` at ``commit``; ``note``: which were chosen and why."""

    repository: str
    commit: str
    files: tuple[Remote, ...]
    note: str
    is_folder: bool

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def here(self) -> int:
        """Bytes of it that are on this disk already, whole files and parts."""
        return sum(
            file.size if target.exists() else min(file.size, partial_bytes(target))
            for file in self.files
            for target in (_blob(self, file),)
        )


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids asking the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def look_up(repository: str, tag: str | None, file: str | None = None) -> Plan:
    """Ask the hub for the files of ``repository``; choose: ``file``, a GGUF of type ``tag``, or the folder.

    Raises ConfigError in one line: no such repository, no access, no network, offline, or no file that fits.
    """
    commit, files = _listing(repository)
    ggufs = first_shards(files)
    if file in files:
        ggufs = [file]
    if ggufs:
        chosen, why = pick(repository, ggufs, tag if file not in files else None)
        parts = [files[name] for name in shards_of(chosen, files)]
        return Plan(repository, commit, tuple(parts), f"{repository}: {chosen} ({why})", False)
    if tag is not None:
        raise ConfigError(f"{repository}:{tag}: the repository holds no .gguf file; leave :{tag} out")
    parts = [file for name, file in sorted(files.items()) if _FOLDER_FILES.fullmatch(name)]
    parts = [file for file in parts if not _OTHER_WEIGHTS.fullmatch(file.name)]
    names = {file.name for file in parts}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ConfigError(f"{repository}: the repository holds no .gguf file and no safetensors model")
    note = f"{repository}: no GGUF file, so the folder of {len(parts)} files"
    return Plan(repository, commit, tuple(parts), note, True)


def fetch_one(repository: str, name: str) -> Path:
    """The file ``name`` of ``repository``, brought into the cache; offline, what is there.

    Raises ConfigError.
    """
    if is_offline():
        for snapshot in snapshots(repository):
            if (snapshot / name).is_file():
                return snapshot / name
    commit, files = _listing(repository)
    if name not in files:
        raise ConfigError(f"{repository}: the repository has no {name}; pull a model of it first")
    return download(Plan(repository, commit, (files[name],), "", False))


def _listing(repository: str) -> tuple[str, dict[str, Remote]]:
    """The current commit, and its files by name."""
    from huggingface_hub import HfApi  # a quarter of a second to import; only where something is fetched

    with in_one_line(repository):
        info = HfApi().model_info(repository, files_metadata=True)
    commit = str(info.sha)
    if not _HEX.fullmatch(commit):
        raise ConfigError(f"{repository}: the hub names no commit of it; try again later")
    return commit, {row.rfilename: _remote(row) for row in info.siblings or () if _is_safe(row.rfilename)}


def download(plan: Plan, progress: Progress = lambda file, doing, done: None) -> Path:
    """Bring the files of ``plan`` into the hub's cache, and check them; gives the GGUF file, or the folder.

    What is there already is checked and not fetched. Raises ConfigError in one line when the network, the
    disk or a file's hash fails; what has come so far stays for the next attempt.
    """
    from huggingface_hub import constants, utils

    library: Any = utils
    snapshot = _repository(plan) / "snapshots" / plan.commit
    for file in plan.files:
        blob = _blob(plan, file)

        def watch(doing: str, done: int, file: Remote = file) -> None:
            progress(file, doing, done)

        with in_one_line(plan.repository):
            if blob.is_file():
                _check_blob(file, blob, watch)
            else:
                url = f"{constants.ENDPOINT}/{plan.repository}/resolve/{plan.commit}/{quote(file.name)}"
                fetch(library.get_session(), url, library.build_hf_headers(), file, blob, watch)
    with in_one_line(plan.repository):  # names only now: a part of a model is none
        for file in plan.files:
            _link(_blob(plan, file), snapshot / file.name)
        write_atomically(_repository(plan) / "refs" / "main", plan.commit.encode())
    return snapshot if plan.is_folder else snapshot / plan.files[0].name


def _check_blob(file: Remote, blob: Path, watch: Callable[[str, int], None]) -> None:
    try:
        check(file, blob, watch)
    except ConfigError:
        blob.unlink(missing_ok=True)
        raise


def _link(blob: Path, name: Path) -> None:
    """``name`` in the snapshot is a relative link to the blob; a file where there are no links."""
    if name.exists() and name.samefile(blob):
        return
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    try:
        name.symlink_to(os.path.relpath(blob, name.parent))
    except OSError:
        os.replace(blob, name)


def _repository(plan: Plan) -> Path:
    return hub_cache() / f"models--{plan.repository.replace('/', '--')}"


def _blob(plan: Plan, file: Remote) -> Path:
    """Where the library keeps the content: by its SHA-256, a small file by its git hash."""
    return _repository(plan) / "blobs" / str(file.sha256 or file.git_sha1)


def _is_safe(name: str) -> bool:
    """A relative path that stays below the folder it is put into."""
    parts = PurePosixPath(name).parts
    plain = bool(parts) and name.isprintable() and "\\" not in name and not name.startswith("/")
    return plain and not any(part in ("..", ".") for part in parts)


def _remote(row: Any) -> Remote:
    lfs = getattr(row, "lfs", None)
    sha = (lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)) if lfs else None
    blob = str(getattr(row, "blob_id", None) or "")
    for value in (sha, blob):
        if value and not _HEX.fullmatch(str(value)):
            raise ConfigError(f"{row.rfilename}: the hub states a hash that is none; try again later")
    if not sha and not blob:
        raise ConfigError(f"{row.rfilename}: the hub states no hash of it, so it cannot be checked")
    return Remote(str(row.rfilename), int(row.size or 0), sha, blob or None)
