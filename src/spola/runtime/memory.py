"""What a server takes: each part of its memory in bytes, before and after it runs.

The weights, the KV cache and the workspace are the backend's own figures, to the byte. The interpreter with
its libraries and the tokenizer are estimates from processes that were measured.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

__all__ = ["INTERPRETER", "TOKENIZER_PER_TOKEN", "MemoryPlan", "peak_resident"]

INTERPRETER = 56 << 20  # Python with the libraries of ``serve`` and its threads' stacks
TOKENIZER_PER_TOKEN = 700  # bytes: tables of merges and of tokens, in Python and in the library


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by what for. ``weights`` are packed, with the tables of positions; ``kv`` is what is reserved."""

    weights: int
    kv: int
    workspace: int
    interpreter: int = INTERPRETER
    tokenizer: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.workspace + self.host

    @property
    def host(self) -> int:
        """What is not the backend's."""
        return self.interpreter + self.tokenizer

    def without_kv(self) -> int:
        """What is resident before the first request; the pages of the KV cache come as they are used."""
        return self.total - self.kv


def peak_resident() -> int | None:
    """The most bytes this process has had in memory so far; None where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except (ImportError, OSError):
        return None
    return used if sys.platform == "darwin" else used * 1024 if os.name == "posix" else None
