"""Keep the built page in step with its sources: ``make page`` records their hash, ``make check`` compares.

Building needs Node.js (``npm run build`` in ``page/``); checking does not.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "page"
BUILT = ROOT / "src" / "spola" / "server" / "page"
RECORD = SOURCES / "built.sha256"
NOT_SOURCES = frozenset({"node_modules", "test", "built.sha256"})


def digest(root: Path, skip: frozenset[str] = frozenset()) -> str:
    """SHA-256 over names and contents of all files under ``root``, but those below a name in ``skip``."""
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root)
        if name.parts[0] not in skip:
            total.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        recorded = RECORD.read_text(encoding="utf-8").split() if RECORD.exists() else []
        for name, now in zip(("sources", "built files"), (digest(SOURCES, NOT_SOURCES), digest(BUILT))):
            if now not in recorded:
                print(f"the page's {name} are not those of the last build: run make page", file=sys.stderr)
                return 1
        return 0
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=SOURCES, check=True)
    subprocess.run(["npm", "run", "build"], cwd=SOURCES, check=True)
    RECORD.write_text(f"{digest(SOURCES, NOT_SOURCES)} {digest(BUILT)}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
