"""What a server takes: each part of its memory in bytes, before and after it runs.

The weights, the KV cache and the workspace are the backend's own figures, to the byte. The interpreter with
its libraries is an estimate from processes that were measured; the tokenizer is counted (``text.footprint``).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["INTERPRETER", "MemoryPlan", "peak_resident", "resident"]

INTERPRETER = 56 << 20  # Python with the libraries of ``serve`` and its threads' stacks


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by what for. ``weights`` are packed, with the tables of positions; ``kv`` is what is reserved.

    ``draft`` is a draft model's weights and workspace, ``draft_kv`` its cache. ``interpreter`` holds what the
    process had before, as other models. ``loading``, no part of the sum, is what weights take at most while
    they are loaded, when a tensor lies beside what it is packed into.
    """

    weights: int
    kv: int
    workspace: int
    interpreter: int = INTERPRETER
    tokenizer: int = 0
    draft: int = 0
    draft_kv: int = 0
    loading: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.workspace + self.draft + self.draft_kv + self.host

    @property
    def peak(self) -> int:
        """The most that is resident at any time: with everything in use, or before, while loading."""
        return max(self.total, self.host + self.loading)

    @property
    def host(self) -> int:
        """What is not the backend's."""
        return self.interpreter + self.tokenizer

    def without_kv(self) -> int:
        """What is resident before the first request; the pages of KV caches come as they are used."""
        return self.total - self.kv - self.draft_kv


def resident() -> int | None:
    """Bytes of this process that are in memory now; None where the system does not say."""
    return _status("VmRSS:")


def peak_resident() -> int | None:
    """The most bytes this process has had in memory so far; None where the system does not say."""
    return _status("VmHWM:")


def _status(field: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
