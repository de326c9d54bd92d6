"""StepReport: what observers of an engine are told after every step. They change nothing.

Metrics and traces are made from reports alone, so that neither is in the scheduler's way.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from spola.core.step import Step
from spola.engine.events import Event

__all__ = ["Observer", "StepReport"]


class StepReport(msgspec.Struct, gc=False):
    """One step, or events without a step (``step`` None: aborts, or a backend that failed).

    ``arrivals`` gives, for each request in ``step.new``, when it arrived. Queues, blocks and events are as
    they were after the commit. Times are in seconds on the clock passed to ``Engine.step``.
    """

    start_s: float
    elapsed_s: float
    step: Step | None
    events: list[Event]
    waiting: int
    running: int
    kv_used: tuple[int, ...]  # blocks, one count per KvGroup
    kv_blocks: tuple[int, ...]
    kv_shared: tuple[int, ...] = ()  # of the used ones, those with several owners
    kv_cached: tuple[int, ...] = ()  # free ones that hold a prefix
    arrivals: dict[int, float] = {}

    @property
    def ended(self) -> bool:
        """Whether a request has ended."""
        return bool([event for event in self.events if event.finish_reason is not None])

    @property
    def end_s(self) -> float:
        return self.start_s + self.elapsed_s


class Observer(Protocol):
    """Called on the engine's thread: quick, and without exceptions."""

    def step(self, report: StepReport) -> None: ...

    def close(self) -> None:
        """The engine ends. Idempotent."""
