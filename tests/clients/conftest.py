"""A server with SmolLM2 as people start it; ``SPOLA_URL`` names one that runs already, for clients in an
environment of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    if given := os.environ.get("SPOLA_URL"):
        yield given.rstrip("/")
        return
    command = [
        sys.executable,
        "-m",
        "spola",
        "serve",
        "--port",
        "0",
        "-m",
        "smollm2",
        "--max-model-len",
        "2048",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("serving "):
                yield line.partition(" on ")[2].partition(";")[0].removesuffix("/v1")
                break
        else:
            pytest.fail("the server did not start")
    finally:
        process.terminate()
        process.wait(timeout=30)
        assert process.stderr is not None
        process.stderr.close()
