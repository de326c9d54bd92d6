"""What the engine tells the outside: an Event per request and step that has news.

Events are plain data for the thread that owns the connections; nothing here holds a reference to the
engine's own objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from spola.core.step import TokenLogprob

__all__ = ["Event", "FinishReason", "Summary"]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Summary:
    """The account of a finished request. Times are in seconds on the clock passed to ``schedule``."""

    n_prompt: int
    n_output: int  # generated tokens that count: the one that stopped it included, a cut tail not
    n_cached: int  # prompt tokens taken from the prefix cache
    preemptions: int
    arrival_s: float
    scheduled_s: float | None  # first admitted; None if never
    first_token_s: float | None  # None if none was generated
    finished_s: float
    longest_gap_s: float = 0.0  # between two events with tokens
    n_drafted: int = 0  # guesses of a proposer that were verified
    n_accepted: int = 0  # of those, how many were right

    @property
    def queue_s(self) -> float | None:
        """Arrival to first admission."""
        return None if self.scheduled_s is None else self.scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None for fewer than two tokens."""
        if self.first_token_s is None or self.n_output < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.n_output - 1)

    @property
    def latency_s(self) -> float:
        return self.finished_s - self.arrival_s


class Event(msgspec.Struct, gc=False):
    """News of one request. Exactly one event of a request has a ``finish_reason``, and it is the last.

    ``ids`` are the new tokens, an end-of-sequence or stop token included (``stop_id`` names it, so that it
    need not be shown). ``scores`` and ``logits`` come in pieces, in order of position, each position once,
    as do ``prompt_logprobs``, from the second prompt token on; ``logits`` is f32[n, V]. ``finish_reason``
    of a score, embed or logits request is "stop" when all is computed. ``error`` is one line, given with
    the finish reason "error"; ``late`` says that a deadline was the reason.
    """

    id: int
    choice: int = 0
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    scores: tuple[float, ...] | None = None
    vector: bytes | None = None
    logits: bytes | None = None
    finish_reason: FinishReason | None = None
    stop_id: int | None = None
    error: str | None = None
    late: bool = False
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    summary: Summary | None = None  # with the finish reason

    @property
    def final(self) -> bool:
        return self.finish_reason is not None
