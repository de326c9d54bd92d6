"""Limits: the sizes a scheduler works within, and what a backend's Capabilities make of them.

Nothing here is measured or guessed: whoever builds the engine passes the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from spola.core.errors import ConfigError
from spola.core.runner import Capabilities

__all__ = ["Batching", "Limits", "Reservation", "Shape"]

Batching = Literal["continuous", "dynamic", "static"]
Reservation = Literal["paged", "contiguous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in tokens, requests and positions; ``watermark`` is a fraction of the blocks of a group.

    ``batching`` static admits only when nothing runs, dynamic also waits for a full batch or for
    ``batch_window_s``. ``reservation`` contiguous takes the blocks of ``max_model_len`` for every request
    that samples, as a cache without paging does. Both are there to be compared with.
    ``key_seats`` keeps places free of any single key, so that another one need not wait for the end of a long
    answer: fair queueing orders who waits, and takes nobody's place.
    """

    max_step_tokens: int  # rows in one Step, at most
    max_seqs: int  # requests holding KV blocks at the same time, at most
    max_model_len: int  # prompt and generated tokens of one request together, at most
    chunk: int | None = None  # rows of one slice, at most; None = max_step_tokens
    prefix_cache: bool = True  # keep blocks of texts that may come again
    batching: Batching = "continuous"
    batch_window_s: float = 0.0
    reservation: Reservation = "paged"
    ageing_s: float = 30.0  # a waiting request rises by one priority class in this time
    key_seats: int | None = None  # running requests of one key, at most
    watermark: float = 0.01  # kept free at admission while others run, against preemption

    def __post_init__(self) -> None:
        for name in ("max_step_tokens", "max_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("chunk", "key_seats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name, kinds in (("batching", Batching), ("reservation", Reservation)):
            if getattr(self, name) not in get_args(kinds):
                raise ConfigError(
                    f"{name} must be one of {', '.join(get_args(kinds))}, not {getattr(self, name)!r}"
                )
        if not 0.0 <= self.batch_window_s < float("inf"):
            raise ConfigError(f"batch_window_s must be at least 0, not {self.batch_window_s}")
        if self.batch_window_s and self.batching != "dynamic":
            raise ConfigError("batch_window_s is for dynamic batching only")
        if not self.ageing_s > 0.0:
            raise ConfigError(f"ageing_s must be above 0, not {self.ageing_s}")
        if self.reservation == "contiguous" and self.prefix_cache:
            raise ConfigError("a contiguous reservation shares no blocks: turn prefix_cache off")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must be from 0 to below 1, not {self.watermark}")
        if self.max_step_tokens < self.max_seqs:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_seqs ({self.max_seqs}), "
                "so that every running request can have a token in each step; lower max_seqs"
            )


@dataclass(frozen=True, slots=True)
class Shape:
    """The steps that are allowed: ``Limits`` narrowed by ``Capabilities``."""

    rows: int  # rows in one step
    seqs: int  # running requests
    chunk: int  # rows of one slice, at most
    fixed_chunk: int | None  # exact rows of a prefill slice that does not end its request
    prefills: int  # slices of more than one row in one step
    context: int | None  # sum over the slices of a step of start + n
    mixed: bool  # one-row and longer slices in the same step
    speculation: bool
    block_size: int
    max_len: int  # prompt and generated tokens of one request

    @classmethod
    def of(cls, limits: Limits, caps: Capabilities) -> Shape:
        """Raises ConfigError where the two leave no step that makes progress."""
        rows = min(limits.max_step_tokens, caps.max_step_tokens or limits.max_step_tokens)
        chunk = min(limits.chunk or rows, rows)
        mixed = caps.mixed_batch
        seqs = min(limits.max_seqs, rows, max(caps.batch_buckets, default=rows))
        if caps.prefill_chunk is not None:
            if caps.prefill_chunk > rows:
                raise ConfigError(
                    f"the backend computes prompts in chunks of exactly {caps.prefill_chunk} tokens, "
                    f"more than max_step_tokens ({rows}); raise max_step_tokens"
                )
            chunk = caps.prefill_chunk
            # Decodes may leave less than a whole chunk of the step: alternate, or no prompt would move.
            mixed = mixed and chunk + seqs <= rows
        return cls(
            rows=rows,
            seqs=seqs,
            chunk=chunk,
            fixed_chunk=caps.prefill_chunk,
            prefills=rows if caps.max_prefills is None else caps.max_prefills,
            context=caps.max_total_context,
            mixed=mixed,
            speculation=caps.speculation,
            block_size=caps.block_size,
            max_len=limits.max_model_len,
        )
