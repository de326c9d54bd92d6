"""The Hugging Face hub: which file of a repository is meant, and bringing it here, checked.

Downloads go through ``huggingface_hub`` into its own cache: interrupted ones are resumed, its settings for
endpoint, token, mirror and offline work are obeyed. Every file whose SHA-256 the hub states is hashed after
the download. Opens no model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spola.core.errors import ConfigError
from spola.load.pick import first_shards, pick, shards_of

__all__ = ["HubFile", "Plan", "download", "look_up"]

_FOLDER_FILES = re.compile(
    r"[^/]+\.safetensors|model\.safetensors\.index\.json|(?:generation_)?config\.json|tokenizer(?:_config)?\.json"
    r"|tokenizer\.model|tekken\.json|chat_template\.(?:json|jinja)|special_tokens_map\.json|vocab\.json|merges\.txt"
)
_CHUNK = 1 << 20
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "requests", "urllib3")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. ``sha256`` is None for small files, which the hub does not hash so."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to download: ``files`` of ``repository`` at ``commit``. ``note`` says which were chosen
    and why.
    """

    repository: str
    commit: str
    files: tuple[HubFile, ...]
    note: str
    is_folder: bool

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def look_up(repository: str, tag: str | None) -> Plan:
    """Ask the hub for the files of ``repository`` and choose: GGUF of type ``tag``, else the folder.

    Raises ConfigError in one line: no such repository, no access, no network, offline, or no file that fits.
    """
    hub = _hub()
    with _errors(repository):
        info = hub.HfApi().model_info(repository, files_metadata=True)
    files = {row.rfilename: _file(row) for row in info.siblings or ()}
    ggufs = first_shards(files)
    commit = str(info.sha)
    if ggufs:
        chosen = pick(repository, ggufs, tag)
        parts = [files[name] for name in shards_of(chosen, files)]
        return Plan(repository, commit, tuple(parts), f"{repository}: {chosen}", False)
    if tag is not None:
        raise ConfigError(f"{repository}:{tag}: the repository holds no .gguf file; leave :{tag} out")
    parts = [file for name, file in sorted(files.items()) if _FOLDER_FILES.fullmatch(name)]
    names = {file.name for file in parts}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ConfigError(f"{repository}: the repository holds no .gguf file and no safetensors model")
    return Plan(
        repository, commit, tuple(parts), f"{repository}: {len(parts)} files of a safetensors folder", True
    )


def download(plan: Plan, say: Say = lambda line: None) -> Path:
    """Bring the files of ``plan`` into the hub's cache; gives the GGUF file, or the folder.

    Raises ConfigError in one line when the network, the disk or a file's hash fails; what has been loaded so
    far stays for the next attempt.
    """
    hub = _hub()
    paths = []
    for file in plan.files:
        with _errors(plan.repository):
            path = Path(hub.hf_hub_download(plan.repository, file.name, revision=plan.commit))
        _check(plan.repository, file, path)
        checked = "SHA-256 checked" if file.sha256 else "size checked"
        say(f"{file.name}: {file.size / 1e6:.1f} MB, {checked}")
        paths.append(path)
    return paths[0].parent if plan.is_folder else paths[0]


def _check(repository: str, file: HubFile, path: Path) -> None:
    if file.size and path.stat().st_size != file.size:
        _discard(path)
        raise ConfigError(f"{repository}: {file.name} has another size than the hub states; pull it again")
    if file.sha256 is None:
        return
    state = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            state.update(chunk)
    if state.hexdigest() != file.sha256:
        _discard(path)
        raise ConfigError(
            f"{repository}: {file.name} has not the SHA-256 that the hub states and was removed; pull again"
        )


def _discard(path: Path) -> None:
    """Remove a damaged file: the link in the snapshot and what it points to."""
    target = path.resolve()
    path.unlink(missing_ok=True)
    target.unlink(missing_ok=True)


def _file(row: Any) -> HubFile:
    lfs = getattr(row, "lfs", None)
    sha = (lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)) if lfs else None
    return HubFile(str(row.rfilename), int(row.size or 0), sha)


def _hub() -> Any:
    import huggingface_hub  # a quarter of a second to import; only where something is fetched

    return huggingface_hub


@contextmanager
def _errors(repository: str) -> Iterator[None]:
    """The library's errors, which are many and long, as one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise ConfigError(
            f"{repository}: is not on this disk, and HF_HUB_OFFLINE is set; unset it to download"
        ) from None
    except errors.GatedRepoError:
        raise ConfigError(
            f"{repository}: its terms must be accepted on the hub first; then log in with `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{repository}: the hub has no such model, or it is private: check the name, or `hf auth login`"
        ) from None
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError):
        raise ConfigError(f"{repository}: a file is gone from the hub; try again") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise ConfigError(f"{repository}: the hub answered with HTTP {status}; try again later") from None
    except OSError as error:
        if getattr(error, "errno", None) == 28:
            raise ConfigError(f"{repository}: the disk is full; what is there so far is kept") from None
        raise _no_network(repository, error) from None
    except Exception as error:  # of whichever HTTP library it uses
        if type(error).__module__.split(".")[0] in _HTTP_LIBRARIES:
            raise _no_network(repository, error) from None
        raise


def _no_network(repository: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{repository}: the hub cannot be reached ({type(error).__name__}); check the network, "
        "or pass a file with -m"
    )
