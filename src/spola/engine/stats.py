"""Counters of a scheduler since it was made. Plain numbers: no clock, no rates, no export format."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """All counters only grow. Tokens are rows computed, so recomputed ones count again."""

    steps: int = 0
    prefill_tokens: int = 0  # rows of slices longer than what one new token needs
    decode_tokens: int = 0  # rows that each extend a finished prompt by one, and those of drafts
    cached_tokens: int = 0  # taken from the prefix cache at an admission, instead of computed
    queried_tokens: int = 0  # known at the admissions that asked the prefix cache
    recomputed_tokens: int = 0  # of both, rows that had been computed before a preemption
    output_tokens: int = 0
    draft_runs: int = 0  # slices with drafts
    draft_tokens: int = 0  # drafts verified; also part of decode_tokens
    accepted_tokens: int = 0  # drafts that were right
    added: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )

    @property
    def aborted(self) -> int:
        return self.finished["abort"]

    def as_dict(self) -> dict[str, Any]:
        """A copy that serializes."""
        return asdict(self)
