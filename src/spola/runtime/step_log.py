"""StepLog: the steps of the requests that are followed, kept as long as somebody holds their trace.

An Observer of the engine. Explains nothing: that is ``runtime.explain``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spola.engine.report import StepReport

__all__ = ["Part", "StepLog", "StepRow", "StepTrace"]


class Part(NamedTuple):
    """What a step computed of one request: ``rows`` positions from ``start``, ``heads`` rows of logits."""

    start: int
    rows: int
    heads: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that computed something of a followed request: ``own``. ``parts`` are of all its requests."""

    step: int
    elapsed_s: float
    own: Part
    new_ids: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def step_rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(eq=False)
class StepTrace:
    """The steps of one request, in order, and on whose behalf it runs. Complete once its end was told."""

    adapter: str | None = None
    key: str = ""
    weight: float = 1.0
    rows: list[StepRow] = field(default_factory=list)


class StepLog:
    """Any thread may ``follow``; traces grow on the engine's thread and are let go with their last holder."""

    def __init__(self) -> None:
        self._traces: weakref.WeakValueDictionary[int, StepTrace] = weakref.WeakValueDictionary()

    def follow(self, ids: Sequence[int], trace: StepTrace) -> None:
        """Keep the steps of the requests ``ids`` in ``trace``. Before they are queued."""
        for id in ids:
            self._traces[id] = trace

    def step(self, report: StepReport) -> None:
        step = report.step
        if step is None or not self._traces:
            return
        parts = tuple(Part(piece.start, piece.n, piece.n_head) for piece in step.slices)
        news = {event.id: event.ids for event in report.events}
        for piece, part in zip(step.slices, parts, strict=True):
            trace = self._traces.get(piece.id)
            if trace is not None:
                trace.rows.append(StepRow(step.index, report.elapsed_s, part, news.get(piece.id, ()), parts))

    def close(self) -> None:
        """Nothing to do."""
