"""The libraries that people call a server with, all of them, against SmolLM2 and against the null backend.

    python tools/clients.py [--backends native,null]

Those that get along are in this environment already (``pip install 'spola[clients]'``; `make clients` does
it). TGI's client wants an older huggingface_hub than spola and gets an environment of its own inside this
one, made at the first run. A server is started once for each backend. Fails when a test fails, and when a
library is missing: nothing is skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "clients"
LIBRARIES = ("openai", "anthropic", "litellm", "langchain_openai", "llm", "ollama", "huggingface_hub")
APART = ("text-generation", "pytest")
PYTEST = ("-m", "pytest", "-W", "default", "-p", "no:cacheprovider", "-rA")


def environment(folder: Path) -> str:
    """The Python of an environment with what does not get along with the rest."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    found = subprocess.run([python, "-c", "import text_generation, pytest"], capture_output=True, check=False)
    if found.returncode:
        print(f"setting up {folder}", file=sys.stderr)
        # Constraints are of the other environment.
        env = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        subprocess.run([python, "-m", "pip", "install", "-q", *APART], check=True, env=env)
    return str(python)


@contextmanager
def served(backend: str) -> Iterator[str]:
    """The URL of a server of SmolLM2, which ends with the block."""
    command = [sys.executable, "-m", "spola", "serve", "-m", "smollm2", "--backend", backend, "--port", "0"]
    command += ["--max-model-len", "2048", "--log-format", "off", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
            else:
                raise SystemExit("the server did not start")
            yield json.loads(text)["url"].removesuffix("/v1")
        finally:
            process.terminate()


def run(python: str, url: str, *more: str) -> bool:
    """Whether every test of ``more`` passed with the server at ``url``, none left out."""
    env = {**os.environ, "SPOLA_URL": url}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), env.get("PYTHONPATH"))))
    return subprocess.run([python, *PYTEST, *more], env=env, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", default="native,null")
    asked = parser.parse_args()
    if missing := [name for name in LIBRARIES if importlib.util.find_spec(name) is None]:
        print(f"not installed: {', '.join(missing)}; pip install 'spola[clients]'", file=sys.stderr)
        return 1
    apart = environment(Path(sys.prefix) / "text-generation")
    tgi = f"{TESTS / 'test_borrowed.py'}::test_text_generation"
    fine = True
    for backend in asked.backends.split(","):
        with served(backend) as url:
            print(f"\nclients against the {backend} backend", flush=True)
            fine &= run(
                sys.executable,
                url,
                str(TESTS),
                "--deselect",
                "tests/clients/test_borrowed.py::test_text_generation",
            )
            fine &= run(apart, url, tgi)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
