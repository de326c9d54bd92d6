"""``spola pull`` from a hub made here: where things go, in a process of its own, and how it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.cli import Done
from support.fake_hub import FakeHub

__all__ = ["REPOSITORY", "blobs", "failed", "places", "process"]

REPOSITORY = "some-org/Tiny-GGUF"


def places(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "NO_PROXY": "*",
    }


def process(hub: FakeHub, home: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    """``spola`` in a process of its own, which reads the hub's variables itself."""
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    return subprocess.Popen(
        [sys.executable, "-m", "spola", *args],
        env=kept | places(home) | {"HF_ENDPOINT": hub.url} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def failed(done: Done) -> str:
    """The one line of an error."""
    assert done.returncode == 1, done
    assert done.stdout == ""
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("spola: error: ")
    assert "Traceback" not in done.stderr
    return line


def blobs(home: Path) -> list[Path]:
    return sorted(path for path in (home / "hf").rglob("blobs/*") if path.is_file())
