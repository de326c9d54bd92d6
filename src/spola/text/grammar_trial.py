"""Trial compilations: a JSON Schema that may cost without bound is compiled in a process of its own first.

The compiler decides whether several patterns for one text leave anything (``allOf``), and its time and
memory then grow with the power set of the patterns; nothing interrupts it. So such schemas, and large ones,
are given to a child with bounds of processor time and memory, at a low priority. It says only that it has
come to an end; ``text.grammar`` then compiles again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from spola.core.errors import RequestError
from spola.text.schema_walk import subschemas

__all__ = ["needs_trial", "try_out"]

CPU_S = 5
MEMORY = 1 << 30  # bytes of address space
WAIT_S = 60.0
LARGE = 32 * 1024  # characters
PATTERNS = 10  # different ones: 2 ** PATTERNS states are soon made

# Python that loads nothing but the compiler from where it is found here.
_CHILD = """
import os, resource, sys
os.nice(10)
for kind, most in ((resource.RLIMIT_CPU, int(sys.argv[2])), (resource.RLIMIT_AS, int(sys.argv[3]))):
    resource.setrlimit(kind, (most, most))
sys.path.insert(0, sys.argv[1])
from llguidance import LLMatcher
LLMatcher.validate_grammar(sys.stdin.read())
print("done")
"""


def needs_trial(schema: Any, text: str) -> bool:
    """Whether compiling ``schema``, which is ``text`` as JSON, may take longer than its size says."""
    if len(text) > LARGE:
        return True
    if "allOf" not in text and "$ref" not in text and "anyOf" not in text and "oneOf" not in text:
        return False
    patterns: set[str] = set()
    for _, part in subschemas(schema):
        if not isinstance(part, dict):
            continue
        patterns.update(f"{name} {part[name]}" for name in ("pattern", "format") if name in part)
        named = part.get("patternProperties")
        if isinstance(named, dict):
            patterns.update(named)
    return len(patterns) >= PATTERNS


def try_out(schema: Any, param: str) -> None:
    """Compile ``schema`` in a child. Raises RequestError with ``param`` when that goes beyond the bounds.

    What the compiler finds wrong is not said here.
    """
    import llguidance

    folder = str(Path(llguidance.__file__).resolve().parent.parent)
    command = [sys.executable, "-P", "-c", _CHILD, folder, str(CPU_S), str(MEMORY)]
    text = json.dumps({"grammars": [{"json_schema": schema}]})
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        done = ""
    if done.strip() != "done":
        raise RequestError(
            f"{param}: the schema takes too long to compile: fewer patterns for one text, or less of all",
            param=param,
        )
