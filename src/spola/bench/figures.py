"""From the samples of a load to figures; each is defined in ``DEFINITIONS``, which is printed beside them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from spola.bench.exchange import Sample
from spola.bench.serve import Outcome
from spola.core.errors import ConfigError
from spola.core.quantiles import describe

__all__ = ["DEFINITIONS", "figures", "parse_slos", "table"]

DEFINITIONS = {
    "ttft": "time to first token: from when the request should have been sent to its first event with text",
    "tpot": "time per output token: (latency - TTFT) / (tokens - 1), per request with at least 2 tokens",
    "itl": "inter-token latency: every gap between two events with text, pooled over all requests",
    "latency": "from when the request should have been sent to its last token (text or finish reason)",
    "output_tok_s": "output tokens of finished requests / duration",
    "request_s": "finished requests / duration",
    "duration": "from the first request's time to the last token",
    "goodput": "finished requests that meet every --slo / duration",
    "send_lag": "how much later than it should a request was sent",
    "percentiles": "linear between the two nearest values (NumPy's default); failed requests are left out",
}
_SLO = ("ttft", "tpot", "latency")


def parse_slos(values: Iterable[str]) -> dict[str, float]:
    """``ttft:200`` (milliseconds) and so on. Raises ConfigError."""
    slos = {}
    for value in values:
        name, _, limit = value.partition(":")
        try:
            ms = float(limit)
        except ValueError:
            ms = math.nan
        if name not in _SLO or not 0 < ms < math.inf:
            raise ConfigError(
                f"--slo {value!r} is no METRIC:MS, with one of {', '.join(_SLO)}, like ttft:200"
            )
        slos[name] = ms
    return slos


def figures(outcome: Outcome, slos: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The JSON document of ``bench serve``, without what was asked for."""
    good = [sample for sample in outcome.samples if not sample.error]
    bad = [sample for sample in outcome.samples if sample.error]
    duration = max(outcome.end - outcome.start, 1e-9)
    tokens = sum(sample.n for sample in good)
    prompts = sum(sample.prompt or 0 for sample in good)
    out: dict[str, Any] = {
        "requests": len(outcome.samples),
        "failed": len(bad),
        "errors": dict(Counter(sample.error for sample in bad).most_common(20)),
        "duration_s": duration,
        "output_tok_s": tokens / duration,
        "total_tok_s": (tokens + prompts) / duration,
        "request_s": len(good) / duration,
        "prompt_tokens": prompts,
        "output_tokens": tokens,
        "cached_tokens": sum(sample.cached or 0 for sample in good),
        "tokens_from": "usage" if all(sample.tokens is not None for sample in good) else "events",
        "ttft_ms": describe(1e3 * sample.ttft_s for sample in good),
        "tpot_ms": describe(1e3 * t for sample in good if (t := sample.tpot_s) is not None),
        "itl_ms": describe(1e3 * gap for sample in good for gap in gaps(sample)),
        "latency_ms": describe(1e3 * sample.latency_s for sample in good),
        "send_lag_ms": describe(1e3 * (sample.sent - sample.intended) for sample in outcome.samples),
        "mean_concurrency": sum(sample.latency_s for sample in good) / duration,
        "client_cpu": outcome.client_cpu,
    }
    if slos:
        met = sum(meets(sample, slos) for sample in good)
        share = met / len(outcome.samples) if outcome.samples else 0.0
        out["goodput"] = {"slo_ms": dict(slos), "met": met, "share": share, "request_s": met / duration}
    out["definitions"] = DEFINITIONS
    out["samples"] = [_row(sample, outcome.start) for sample in outcome.samples]
    return out


def gaps(sample: Sample) -> list[float]:
    """Seconds between events with text that follow each other."""
    return [later - earlier for earlier, later in zip(sample.events, sample.events[1:])]


def meets(sample: Sample, slos: Mapping[str, float]) -> bool:
    """Whether a finished request meets every objective; a lone token has no TPOT to miss."""
    found = {"ttft": sample.ttft_s, "tpot": sample.tpot_s or 0.0, "latency": sample.latency_s}
    return all(1e3 * found[name] <= limit for name, limit in slos.items())


def _row(sample: Sample, start: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "at_s": sample.intended - start,
        "send_lag_ms": 1e3 * (sample.sent - sample.intended),
    }
    if sample.error:
        return row | {"error": sample.error}
    tpot = sample.tpot_s
    return row | {
        "ttft_ms": 1e3 * sample.ttft_s,
        "tpot_ms": None if tpot is None else 1e3 * tpot,
        "latency_ms": 1e3 * sample.latency_s,
        "events": len(sample.events),
        "tokens": sample.n,
        "prompt_tokens": sample.prompt,
        "cached_tokens": sample.cached,
        "finish_reason": sample.finish,
    }


def table(result: Mapping[str, Any]) -> list[str]:
    """The figures as lines for a terminal, each with its definition."""
    lines = [
        f"{result['url']}, {result['model']}: {result['arrivals']}; {result['dataset']}",
        f"{result['requests']} requests, {result['failed']} failed, {result['duration_s']:.2f} s, "
        f"{result['request_s']:.2f} requests/s, {result['output_tok_s']:.1f} output tok/s "
        f"({result['total_tok_s']:.1f} with prompts), {result['mean_concurrency']:.2f} at a time on average",
    ]
    lines += [f"  {count} x {error}" for error, count in result["errors"].items()]
    lines.append(f"{'ms':<10}{'mean':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}")
    for name in ("ttft", "tpot", "itl", "latency", "send_lag"):
        row = result[f"{name}_ms"]
        shown = "".join(f"{_number(row[key]):>10}" for key in ("mean", "p50", "p95", "p99", "max"))
        lines.append(f"{name:<10}{shown}   {DEFINITIONS[name]}")
    if "goodput" in result:
        good = result["goodput"]
        slos = ", ".join(f"{name} <= {ms:g} ms" for name, ms in good["slo_ms"].items())
        lines.append(f"goodput {good['request_s']:.2f} requests/s, {good['share']:.0%} of all ({slos})")
    if result["tokens_from"] == "events":
        lines.append("the server gave no usage: a token was counted for each event with text")
    if result["client_cpu"] > 0.5:
        lines.append(
            f"this client used {result['client_cpu']:.0%} of a processor: it may have been the limit"
        )
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
