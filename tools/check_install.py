"""Build a wheel, install it into an empty environment, and hold the result to the promises of one install.

Checks there: the installed size, that NumPy and torch are not importable, that importing the package loads
nothing, and that the command answers from the embedded model (when ``--model FILE`` names it). Prints each
figure; exits 1 when a promise is broken. Needs the package registries, so it is no part of the unit tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_MB = 80.0


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return str(done.stdout)


def installed_mb(folder: Path, skip: tuple[str, ...]) -> float:
    """Apparent size of everything below ``folder`` but packages that the environment itself brought."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] not in skip)
    return sum(p.stat().st_size for p in files) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file to answer from")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
        (wheel,) = folder.glob("spola-*.whl")
        run(sys.executable, "-m", "venv", folder / "env")
        python, spola = folder / "env/bin/python", folder / "env/bin/spola"
        (site,) = (folder / "env/lib").glob("python*/site-packages")
        before = tuple(p.name for p in site.iterdir())
        run(python, "-m", "pip", "install", "-q", wheel)
        run(python, "-m", "compileall", "-q", site)
        problems = []
        size = installed_mb(site, before)
        print(f"wheel {wheel.stat().st_size / 1e6:.1f} MB, installed {size:.1f} MB of {MOST_MB:.0f}")
        if size > MOST_MB:
            problems.append(f"{size:.1f} MB installed")
        for package in ("numpy", "torch"):
            code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is not None)"
            if subprocess.run([python, "-c", code], check=False).returncode:
                problems.append(f"{package} is importable")
        times = []
        for code in ("pass", "import spola"):
            best = 9.0
            for _ in range(5):
                start = time.perf_counter()
                run(python, "-c", code)
                best = min(best, time.perf_counter() - start)
            times.append(best)
        print(f"import spola: {(times[1] - times[0]) * 1000:.0f} ms over a bare interpreter")
        run(spola, "--help")
        if model:
            start = time.perf_counter()
            out = run(
                spola,
                "run",
                "-m",
                model,
                "-n",
                "1",
                "--raw",
                "--temperature",
                "0",
                "--json",
                "The capital of France is",
            )
            print(f"cold spola run -n 1: {time.perf_counter() - start:.2f} s")
            if json.loads(out)["text"] != " Paris":
                problems.append(f"the capital of France is {json.loads(out)['text']!r}")
    for problem in problems:
        print(f"broken promise: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
