"""Timeline: the steps of an engine as a trace. One group of rows shows the steps, one the requests.

A row of requests is a seat: from admission to the end, or to a preemption, one request sits there, and inside
are its pieces of prefill and decode. Waiting is drawn apart, one line per request. Reads reports only.
"""

from __future__ import annotations

import heapq
from pathlib import Path

from spola.core.step import Slice, Step
from spola.core.trace import TraceWriter
from spola.engine.report import StepReport

__all__ = ["Timeline"]

STEPS, REQUESTS = 1, 2


class Timeline:
    """An Observer that writes to ``path``. Raises ConfigError when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._trace = TraceWriter(path)
        self._trace.group(STEPS, "engine")
        self._trace.row(STEPS, 1, "steps")
        self._trace.group(REQUESTS, "requests")
        self._trace.flush()
        self._zero: float | None = None
        self._seats: dict[int, int] = {}
        self._free: list[int] = []
        self._rows = 0
        self._since: dict[int, float] = {}  # request that was preempted -> when

    @property
    def failure(self) -> str | None:
        """Why the trace ended early, if it did."""
        return self._trace.failure

    def step(self, report: StepReport) -> None:
        if self._zero is None:
            self._zero = min([report.start_s, *report.arrivals.values()])  # no time is before it
        start, end = report.start_s - self._zero, report.end_s - self._zero
        if report.step is not None:
            self._leave(report, start)
            self._enter(report, start)
            self._draw(report.step, start, report.elapsed_s)
        for event in report.events:
            if event.final:
                self._end(event.id, end, event.finish_reason or "")
                if event.summary is not None and event.summary.scheduled_s is None:
                    since = max(0.0, event.summary.arrival_s - self._zero)
                    self._trace.wait(f"waiting {event.id}", event.id, since, end, REQUESTS)
        at = {"waiting": report.waiting, "running": report.running}
        self._trace.counter("requests", end, STEPS, at)
        self._trace.counter("KV blocks", end, STEPS, {"used": sum(report.kv_used)})
        self._trace.flush()

    def close(self) -> None:
        self._trace.close()

    def _leave(self, report: StepReport, start: float) -> None:
        """Requests that gave their blocks back before the step: preempted ones, unless they were aborted."""
        assert report.step is not None
        ended = {event.id: event.finish_reason for event in report.events if event.final}
        for id in report.step.gone:
            if id in self._seats:
                self._end(id, start, ended.get(id) or "preempted")
                if id not in ended:
                    self._since[id] = start

    def _enter(self, report: StepReport, start: float) -> None:
        assert report.step is not None
        assert self._zero is not None
        for state in report.step.new:
            since = self._since.pop(state.id, None)
            if since is None:
                since = report.arrivals.get(state.id, report.start_s) - self._zero
            if start > since:
                self._trace.wait(f"waiting {state.id}", state.id, since, start, REQUESTS)
            seat = self._seats[state.id] = self._seat()
            args = {"prompt": state.n_prompt, "known": len(state.ids) // 4, "choice": state.choice}
            self._trace.begin(f"request {state.id}", start, REQUESTS, seat, args)

    def _seat(self) -> int:
        """The lowest row that nobody sits in."""
        if self._free:
            return heapq.heappop(self._free)
        self._rows += 1
        self._trace.row(REQUESTS, self._rows, f"seat {self._rows}")
        return self._rows

    def _draw(self, step: Step, start: float, length: float) -> None:
        prefill = decode = 0
        for piece in step.slices:
            seat = self._seats.get(piece.id)
            rows = piece.n - piece.n_drafts
            kind = "decode" if rows == 1 else "prefill"
            if kind == "decode":
                decode += 1
            else:
                prefill += rows
            if seat is not None:
                self._trace.span(kind, start, length, REQUESTS, seat, _about(piece, step))
        parts = [f"{decode} decode"] * (decode > 0) + [f"{prefill} prefill"] * (prefill > 0)
        args = {"step": step.index, "decode": decode, "prefill": prefill, "slices": len(step.slices)}
        self._trace.span(" + ".join(parts), start, length, STEPS, 1, args)
        self._trace.counter("rows", start, STEPS, {"decode": decode, "prefill": prefill})

    def _end(self, id: int, at: float, why: str) -> None:
        self._since.pop(id, None)
        seat = self._seats.pop(id, None)
        if seat is not None:
            self._trace.end(f"request {id}", at, REQUESTS, seat, {"end": why})
            heapq.heappush(self._free, seat)


def _about(piece: Slice, step: Step) -> dict[str, int]:
    return {
        "request": piece.id,
        "step": step.index,
        "position": piece.start,
        "rows": piece.n,
        "drafts": piece.n_drafts,
    }
