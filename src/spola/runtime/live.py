"""LiveView: what the engine is doing now, for a page or a terminal that watches it.

An Observer that keeps the last steps while somebody watches, and nothing otherwise. What is shown is made by
``snapshot`` on the watcher's thread, not on the engine's. Draws nothing and serves nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spola.core.runner import KvGroup
from spola.engine.metrics import Metrics
from spola.engine.report import StepReport
from spola.spec.cost import kv_read_bytes, streamed_weight_bytes
from spola.spec.decoder import DecoderSpec

__all__ = ["KEPT_STEPS", "LiveView", "StepBytes"]

KEPT_STEPS = 512
RATE_S = 5.0  # seconds over which rates are taken


class StepBytes:
    """Bytes that one decode step reads: all weights once, and the K and V of every sequence.

    ``overhead`` is what the backend's layout adds to the weights as stored.
    """

    def __init__(
        self, spec: DecoderSpec, dtypes: Mapping[str, str], groups: Sequence[KvGroup], overhead: int = 0
    ) -> None:
        self._weights: Callable[[int], int] = lambda rows: streamed_weight_bytes(spec, dtypes, rows)
        self._groups = groups
        self._overhead = overhead
        self._by_rows: dict[int, int] = {}

    def __call__(self, contexts: Sequence[int]) -> int:
        rows = len(contexts)
        if rows not in self._by_rows:
            self._by_rows[rows] = self._weights(rows) + self._overhead
        return self._by_rows[rows] + sum(kv_read_bytes(self._groups, context) for context in contexts)


@dataclass(frozen=True, slots=True)
class _Row:
    """A step as kept. ``slices``: (request, rows without drafts, drafts, first position)."""

    number: int
    start_s: float
    elapsed_s: float
    slices: tuple[tuple[int, int, int, int], ...]
    tokens: int
    kv_used: int


class LiveView:
    """Watches an engine; ``metrics`` are those of the same engine.

    ``step_bytes`` and ``bandwidth`` (bytes per second, asked for at each snapshot; None: not known) give the
    share of the memory bound that decode reaches.
    """

    def __init__(
        self,
        metrics: Metrics,
        step_bytes: Callable[[Sequence[int]], int],
        bandwidth: Callable[[], float | None],
    ) -> None:
        self._metrics = metrics
        self._step_bytes = step_bytes
        self._bandwidth = bandwidth
        self._watchers = 0
        self._lock = threading.Lock()
        self._rows: deque[_Row] = deque(maxlen=KEPT_STEPS)
        self._number = 0
        self._last: StepReport | None = None

    @contextmanager
    def watching(self) -> Iterator[LiveView]:
        """Steps are kept while at least one watcher is inside."""
        with self._lock:
            self._watchers += 1
        try:
            yield self
        finally:
            with self._lock:
                self._watchers -= 1
                if not self._watchers:
                    self._rows.clear()

    def step(self, report: StepReport) -> None:
        self._last = report
        if not self._watchers or report.step is None:
            return
        self._number += 1
        row = _Row(
            self._number,
            report.start_s,
            report.elapsed_s,
            tuple((s.id, s.n - s.n_drafts, s.n_drafts, s.start) for s in report.step.slices),
            sum(len(event.ids) for event in report.events),
            sum(report.kv_used),
        )
        with self._lock:
            self._rows.append(row)

    def close(self) -> None:
        """Nothing to do."""

    def snapshot(self, now: float, after: int = 0) -> dict[str, Any]:
        """What there is to show at ``now`` on the engine's clock, with the steps numbered above ``after``.

        Serializes. Times are in seconds, ``steps[].start_s`` relative to ``now``; a slice of one row is
        "decode", a longer one "prefill". Rates are of the last 5 seconds; percentiles as in ``Metrics``.
        """
        with self._lock:
            rows = list(self._rows)
        metrics, last = self._metrics, self._last
        metrics.settle()
        recent = [row for row in rows if row.start_s + row.elapsed_s > now - RATE_S]
        return {
            "next": rows[-1].number if rows else after,
            "steps_done": metrics.steps,
            "steps": [_shown(row, now) for row in rows if row.number > after],
            "requests": {
                "running": last.running if last else 0,
                "waiting": last.waiting if last else 0,
                "seats": metrics.seats,
                "finished": dict(metrics.finished),
            },
            "kv_blocks": _kv(last),
            "rates": {
                "output_tok_s": sum(row.tokens for row in recent) / RATE_S,
                "prefill_tok_s": sum(n for row in recent for _, n, _, _ in row.slices if n > 1) / RATE_S,
                "steps_s": len(recent) / RATE_S,
                "busy": min(1.0, sum(row.elapsed_s for row in recent) / RATE_S),
            },
            "decode_bandwidth": self._decode_bandwidth(recent),
            "ttft_s": metrics.times["ttft_s"].describe(),
            "itl_s": metrics.times["itl_s"].describe(),
            "preemptions": metrics.preemptions,
            "cached_tokens": metrics.cached_tokens,
            "prompt_tokens": metrics.prompt_tokens,
            "output_tokens": metrics.output_tokens,
        }

    def _decode_bandwidth(self, rows: Sequence[_Row]) -> dict[str, float | None] | None:
        """Bytes per second that steps of decodes alone have read, beside what this machine can read."""
        pure = [row for row in rows if row.slices and all(n == 1 for _, n, _, _ in row.slices)]
        seconds = sum(row.elapsed_s for row in pure)
        if not seconds:
            return None
        moved = sum(self._step_bytes([start + 1 for _, _, _, start in row.slices]) for row in pure)
        limit = self._bandwidth()
        reached = moved / seconds
        return {"bytes_s": reached, "limit_bytes_s": limit, "fraction": reached / limit if limit else None}


def _shown(row: _Row, now: float) -> dict[str, Any]:
    return {
        "number": row.number,
        "start_s": row.start_s - now,
        "elapsed_s": row.elapsed_s,
        "kv_used": row.kv_used,
        "tokens": row.tokens,
        "slices": [
            {
                "request": id,
                "phase": "decode" if rows == 1 else "prefill",
                "rows": rows,
                "drafts": drafts,
                "position": start,
            }
            for id, rows, drafts, start in row.slices
        ],
    }


def _kv(last: StepReport | None) -> dict[str, int]:
    """Blocks over all KV groups: ``used`` have an owner, ``shared`` of them several, ``cached`` are free but
    hold a prefix that may come again.
    """
    if last is None:
        return {"used": 0, "shared": 0, "cached": 0, "all": 0}
    return {
        "used": sum(last.kv_used),
        "shared": sum(last.kv_shared),
        "cached": sum(last.kv_cached),
        "all": sum(last.kv_blocks),
    }
