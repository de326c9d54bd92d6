"""Two configurations, or two servers, in turns: A B A B. Ratios of neighbours, so that a machine that changes
speed meanwhile changes both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["OFFLINE", "SERVE", "interleave", "ratios"]

# What is compared, and whether more is better.
OFFLINE = {"prefill_tok_s": True, "decode_tok_s": True}
SERVE = {
    "output_tok_s": True,
    "request_s": True,
    "ttft_p50_ms": False,
    "ttft_p95_ms": False,
    "tpot_p50_ms": False,
    "itl_p95_ms": False,
    "latency_p50_ms": False,
}

Measure = Callable[[], Mapping[str, float]]


def interleave(a: Measure, b: Measure, repeat: int) -> dict[str, dict[str, list[float]]]:
    """``repeat`` runs of each, in turns; who goes first alternates. Figure -> "a" and "b" -> values."""
    out: dict[str, dict[str, list[float]]] = {}
    for i in range(repeat):
        pair = (("a", a), ("b", b))
        for side, measure in pair if i % 2 == 0 else reversed(pair):
            for name, value in measure().items():
                out.setdefault(name, {"a": [], "b": []})[side].append(value)
    return out


def ratios(
    values: Mapping[str, Mapping[str, Sequence[float]]], better: Mapping[str, bool]
) -> list[dict[str, Any]]:
    """For each figure the medians, the median of the ratios b / a of each round, and their spread."""
    rows = []
    for name, sides in values.items():
        pairs = [y / x for x, y in zip(sides["a"], sides["b"], strict=True) if x > 0]
        kind = next((up for key, up in better.items() if name.startswith(key)), True)
        middle = statistics.median(pairs) if pairs else None
        rows.append(
            {
                "what": name,
                "a": statistics.median(sides["a"]),
                "b": statistics.median(sides["b"]),
                "ratio": middle,
                "ratio_min": min(pairs, default=None),
                "ratio_max": max(pairs, default=None),
                "more_is_better": kind,
                "verdict": _verdict(pairs, kind),
                "a_values": list(sides["a"]),
                "b_values": list(sides["b"]),
            }
        )
    return rows


def _verdict(pairs: Sequence[float], more_is_better: bool) -> str:
    """Who wins every round; "no difference shown" where rounds disagree."""
    if pairs and all(ratio > 1 for ratio in pairs):
        return "b is better" if more_is_better else "a is better"
    if pairs and all(ratio < 1 for ratio in pairs):
        return "a is better" if more_is_better else "b is better"
    return "no difference shown"
