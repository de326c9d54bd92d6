"""Metrics: what requests waited for and what steps were made of, as counters and percentiles.

Definitions, per request, on the engine's clock:

- queue time: arrival to first admission. TTFT: arrival to first token. Latency: arrival to the last.
- ITL: every gap between two events that bear tokens, pooled over requests; with speculation one event may
  bear several. TPOT: (latency - TTFT) / (output tokens - 1), for requests of at least two.
- A stall is a gap above ``stall_s``.

Percentiles follow ``core.quantiles`` and are of the last 4096 values; counters and histograms are of
everything. Prefill time is first admission to first token, decode time first token to the last.

Steps are counted some at a time: one after the other they cost less than each after a step's other work,
which leaves the caches cold. ``settle`` before reading, or read ``as_dict``; a request's end settles.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from spola.core.buckets import Buckets
from spola.core.quantiles import Window
from spola.core.step import Step
from spola.engine.events import Event, Summary
from spola.engine.report import StepReport
from spola.engine.stats import Stats

__all__ = ["Metrics"]

TIMES = ("queue_s", "ttft_s", "itl_s", "tpot_s", "latency_s")
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


PUT_OFF = 8  # steps that may wait to be counted: more of them would keep the garbage collector busy


class Metrics:
    """An Observer that adds up. ``seats``: requests that can run at once, for the share of idle ones.

    ``stats`` are the scheduler's own counters, given on to whoever reads the metrics.
    """

    def __init__(self, seats: int, *, stall_s: float = 0.1, stats: Stats | None = None) -> None:
        self.seats = seats
        self.stall_s = stall_s
        self.stats = stats or Stats()
        self.histograms = {name: Buckets(SHORT if name in ("itl_s", "tpot_s") else LONG) for name in TIMES}
        self.histograms |= {name: Buckets(LONG) for name in ("prefill_s", "decode_s")}
        self.histograms |= {name: Buckets(TOKENS) for name in ("prompt_tokens", "output_tokens")}
        self.histograms["step_s"] = Buckets(SHORT)
        self.times = {name: Window() for name in TIMES}
        self.finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.prompt_tokens = 0  # of finished requests; a prompt shared by choices counts for each
        self.cached_tokens = 0
        self.asked_tokens = 0  # as prompt_tokens, but a prompt shared by choices counts once
        self.asked_cached_tokens = 0  # of those, from the prefix cache
        self.output_tokens = 0
        self.preemptions = 0
        self.stalls = 0
        self.longest_gap_s = 0.0
        self.steps = 0
        self.step_s = Window()
        self.prefill_rows = Window()  # of each step: rows of slices longer than one
        self.decode_rows = Window()  # of each step: one-row slices
        self.draft_rows = 0
        self.busy_s = 0.0
        self.idle_seat_s = 0.0  # seconds of steps, times seats that computed nothing in them
        self.waiting = self.running = 0
        self.kv_filled_peak = 0  # blocks in use or cached: what has been written to
        self.kv_used = self.kv_peak = self.kv_blocks = self.kv_shared = self.kv_cached = 0
        self.last_step_s: float | None = None  # when a step last ended, on the engine's clock
        self._last_token: dict[int, float] = {}
        self._uncounted: deque[StepReport] = deque()
        self._lock = threading.Lock()

    def step(self, report: StepReport) -> None:
        if report.step is not None:
            self.steps += 1
            self.busy_s += report.elapsed_s
            self.last_step_s = report.end_s
        self.waiting, self.running = report.waiting, report.running
        self._uncounted.append(report)
        if len(self._uncounted) >= PUT_OFF or report.ended:
            self.settle()

    def settle(self) -> None:
        """Count the steps that have been put off. Any thread may ask."""
        with self._lock:
            while self._uncounted:
                self._count(self._uncounted.popleft())

    def _count(self, report: StepReport) -> None:
        self.kv_used, self.kv_blocks = sum(report.kv_used), sum(report.kv_blocks)
        self.kv_shared, self.kv_cached = sum(report.kv_shared), sum(report.kv_cached)
        self.kv_peak = max(self.kv_peak, self.kv_used)
        self.kv_filled_peak = max(self.kv_filled_peak, self.kv_used + self.kv_cached)
        if report.step is not None:
            self._batch(report.step, report.elapsed_s)
        gaps = self._tokens(report.events, report.end_s)
        for gap, n in gaps.items():
            self._gap(gap, n)
        for event in report.events:
            if event.finish_reason is not None:
                self._end(event)

    def close(self) -> None:
        """Nothing to do: the figures stay."""

    def as_dict(self) -> dict[str, Any]:
        """Everything, in seconds, tokens and blocks; serializes."""
        self.settle()
        seat_s = self.busy_s * self.seats
        return {
            "requests": {"waiting": self.waiting, "running": self.running, "finished": dict(self.finished)},
            "tokens": {
                "prompt": self.prompt_tokens,
                "cached": self.cached_tokens,
                "output": self.output_tokens,
                "prefill_rows": int(self.prefill_rows.total),
                "decode_rows": int(self.decode_rows.total),
                "draft_rows": self.draft_rows,
            },
            "preemptions": self.preemptions,
            "stalls": {"count": self.stalls, "above_s": self.stall_s, "longest_gap_s": self.longest_gap_s},
            **{name: window.describe() for name, window in self.times.items()},
            "steps": {
                "count": self.steps,
                "busy_s": self.busy_s,
                "idle_seats": self.idle_seat_s / seat_s if seat_s else None,
                "length_s": self.step_s.describe(),
                "prefill_rows": self.prefill_rows.describe(),
                "decode_rows": self.decode_rows.describe(),
            },
            "kv_blocks": {"used": self.kv_used, "peak": self.kv_peak, "all": self.kv_blocks},
        }

    def _batch(self, step: Step, elapsed_s: float) -> None:
        prefill = decode = 0
        drafts = 0
        for piece in step.slices:
            rows = len(piece.ids) // 4 - piece.n_drafts
            if rows == 1:
                decode += 1
            else:
                prefill += rows
            drafts += piece.n_drafts
        self.draft_rows += drafts
        self.step_s.add(elapsed_s)
        self.histograms["step_s"].add(elapsed_s)
        self.prefill_rows.add(prefill)
        self.decode_rows.add(decode)
        self.idle_seat_s += elapsed_s * (self.seats - len(step.slices))

    def _tokens(self, events: Sequence[Event], now: float) -> dict[float, int]:
        """The gaps since the tokens before, with how often each came: in a step of decodes all are equal."""
        gaps: dict[float, int] = {}
        last = self._last_token
        for event in events:
            if event.ids:
                self.output_tokens += len(event.ids)
                before = last.get(event.id)
                last[event.id] = now
                if before is not None:
                    gap = now - before
                    gaps[gap] = gaps.get(gap, 0) + 1
        return gaps

    def _gap(self, gap: float, n: int) -> None:
        self.times["itl_s"].add(gap, n)
        self.histograms["itl_s"].add(gap, n)
        self.longest_gap_s = max(self.longest_gap_s, gap)
        if gap > self.stall_s:
            self.stalls += n

    def _end(self, event: Event) -> None:
        self._last_token.pop(event.id, None)
        assert event.finish_reason is not None
        self.finished[event.finish_reason] += 1
        summary = event.summary
        if summary is None:
            return
        self.prompt_tokens += summary.n_prompt
        self.cached_tokens += summary.n_cached
        self.preemptions += summary.preemptions
        if event.choice == 0:
            self.asked_tokens += summary.n_prompt
            self.asked_cached_tokens += summary.n_cached
        for name in ("queue_s", "ttft_s", "tpot_s"):
            value = getattr(summary, name)
            if value is not None:
                self._time(name, value)
        if event.finish_reason in ("stop", "length"):
            self._time("latency_s", summary.latency_s)
            self._lengths(summary)

    def _lengths(self, summary: Summary) -> None:
        self.histograms["prompt_tokens"].add(summary.n_prompt)
        self.histograms["output_tokens"].add(summary.n_output)
        first = summary.first_token_s
        if first is not None:
            assert summary.scheduled_s is not None
            self.histograms["prefill_s"].add(first - summary.scheduled_s)
            self.histograms["decode_s"].add(summary.finished_s - first)

    def _time(self, name: str, value: float) -> None:
        self.times[name].add(value)
        self.histograms[name].add(value)
