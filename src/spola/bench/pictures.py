"""Pictures of a result of ``bench serve``: distributions, waiting over time, and requests in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spola.charts import Page, Series, plain

__all__ = ["serve_page"]

_MOST_POINTS = 400


def serve_page(result: Mapping[str, Any]) -> Page:
    """Four panels from the JSON document of ``bench serve``."""
    rows = [row for row in result["samples"] if "error" not in row]
    page = Page(f"{result['model']}: {result['arrivals']}, {plain(result['output_tok_s'], 4)} output tok/s")
    page.plot(
        "Times to the first token",
        [Series("TTFT", [(row["at_s"], row["ttft_ms"]) for row in rows], "dots")],
        "seconds from the start at which the request came",
        "TTFT, ms",
    )
    page.plot(
        "Distributions",
        [
            Series(name.upper(), _cumulated([row[f"{name}_ms"] for row in rows]))
            for name in ("ttft", "tpot", "latency")
        ],
        "ms",
        "share of requests at most this",
        log_x=True,
    )
    page.plot("Requests in flight", [Series("in flight", _in_flight(rows))], "seconds", "requests")
    page.plot(
        "Speed of each answer",
        [Series("TPOT", [(r["at_s"], r["tpot_ms"]) for r in rows if r["tpot_ms"] is not None], "dots")],
        "seconds from the start at which the request came",
        "TPOT, ms",
    )
    return page


def _cumulated(values: Sequence[float | None]) -> list[tuple[float, float]]:
    ordered = sorted(value for value in values if value is not None)
    every = max(1, len(ordered) // _MOST_POINTS)
    return [(value, (i + 1) / len(ordered)) for i, value in enumerate(ordered)][every - 1 :: every]


def _in_flight(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    changes = sorted(
        [(row["at_s"], 1) for row in rows] + [(row["at_s"] + row["latency_ms"] / 1e3, -1) for row in rows]
    )
    points, now = [(0.0, 0.0)], 0
    for at, change in changes:
        points += [(at, float(now)), (at, float(now + change))]
        now += change
    return points
