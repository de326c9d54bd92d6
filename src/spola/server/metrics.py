"""GET /metrics: Prometheus' text, made when it is asked for from counters that others keep.

What vLLM has too bears its name with the prefix ``vllm:``, so that dashboards made for it work, and the same
under ``spola:``; everything else is ``spola:`` alone. Counters only grow; nothing is reset by reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest

from spola import __version__
from spola.core.buckets import Buckets
from spola.engine.metrics import Metrics
from spola.server.accounts import Account
from spola.server.shelf import Book

__all__ = ["CONTENT_TYPE", "TABLE", "Page", "Row", "Source", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of an engine. ``read`` gives a number, Buckets, or numbers by the value of ``label``.

    ``shared``: vLLM has it under the same name and with the same meaning.
    """

    name: str
    kind: str  # counter (named without _total), gauge or histogram
    doc: str
    read: Callable[[Metrics], Any]
    shared: bool = False
    label: str = ""


def _histogram(name: str) -> Callable[[Metrics], Buckets]:
    return lambda metrics: metrics.histograms[name]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


TABLE: tuple[Row, ...] = (
    Row("num_requests_running", "gauge", "Choices that hold KV blocks", lambda m: m.running, True),
    Row("num_requests_waiting", "gauge", "Choices that wait for their turn", lambda m: m.waiting, True),
    Row(
        "kv_cache_usage_perc",
        "gauge",
        "KV blocks in use, as a fraction of all: 1 is full",
        lambda m: _share(m.kv_used, m.kv_blocks),
        True,
    ),
    Row(
        "kv_blocks",
        "gauge",
        "KV blocks: used, of these shared by several requests, free ones that hold a prefix, and all",
        lambda m: {"used": m.kv_used, "shared": m.kv_shared, "cached": m.kv_cached, "all": m.kv_blocks},
        label="state",
    ),
    Row(
        "prefix_cache_queries",
        "counter",
        "Tokens looked up in the prefix cache at admission",
        lambda m: m.stats.queried_tokens,
        True,
    ),
    Row(
        "prefix_cache_hits",
        "counter",
        "Tokens taken from the prefix cache instead of computed",
        lambda m: m.stats.cached_tokens,
        True,
    ),
    Row(
        "num_preemptions",
        "counter",
        "Requests put back to be computed again",
        lambda m: m.stats.preemptions,
        True,
    ),
    Row(
        "prompt_tokens",
        "counter",
        "Prompt tokens of ended requests, as in usage: a prompt shared by choices counts once",
        lambda m: m.asked_tokens,
        True,
    ),
    Row(
        "cached_tokens",
        "counter",
        "Of prompt_tokens, those from the prefix cache, as in usage",
        lambda m: m.asked_cached_tokens,
    ),
    Row("generation_tokens", "counter", "Generated tokens, as they come", lambda m: m.output_tokens, True),
    Row(
        "computed_tokens",
        "counter",
        "Rows computed: of prompts, of decodes, and drafts",
        lambda m: {
            "prefill": int(m.prefill_rows.total),
            "decode": int(m.decode_rows.total),
            "draft": m.draft_rows,
        },
        label="phase",
    ),
    Row(
        "request_success",
        "counter",
        "Choices that ended, by reason",
        lambda m: dict(m.finished),
        True,
        "finished_reason",
    ),
    Row("spec_decode_num_drafts", "counter", "Slices with drafts", lambda m: m.stats.draft_runs, True),
    Row("spec_decode_num_draft_tokens", "counter", "Drafts verified", lambda m: m.stats.draft_tokens, True),
    Row(
        "spec_decode_num_accepted_tokens",
        "counter",
        "Drafts that were right",
        lambda m: m.stats.accepted_tokens,
        True,
    ),
    Row("steps", "counter", "Steps of the engine", lambda m: m.steps),
    Row("busy_seconds", "counter", "Time spent in steps", lambda m: m.busy_s),
    Row("stalls", "counter", "Gaps between tokens above the ITL target", lambda m: m.stalls),
    Row(
        "time_to_first_token_seconds",
        "histogram",
        "Arrival to first token",
        _histogram("ttft_s"),
        True,
    ),
    Row(
        "inter_token_latency_seconds",
        "histogram",
        "Between two events with tokens",
        _histogram("itl_s"),
        True,
    ),
    Row(
        "request_time_per_output_token_seconds",
        "histogram",
        "Mean time per token after the first, of each choice",
        _histogram("tpot_s"),
        True,
    ),
    Row("e2e_request_latency_seconds", "histogram", "Arrival to last token", _histogram("latency_s"), True),
    Row("request_queue_time_seconds", "histogram", "Arrival to first admission", _histogram("queue_s"), True),
    Row(
        "request_prefill_time_seconds",
        "histogram",
        "First admission to first token",
        _histogram("prefill_s"),
        True,
    ),
    Row("request_decode_time_seconds", "histogram", "First token to last", _histogram("decode_s"), True),
    Row("request_prompt_tokens", "histogram", "Prompt tokens of a choice", _histogram("prompt_tokens"), True),
    Row(
        "request_generation_tokens",
        "histogram",
        "Generated tokens of a choice",
        _histogram("output_tokens"),
        True,
    ),
    Row("step_seconds", "histogram", "Length of a step", _histogram("step_s")),
)

_KEYS: tuple[tuple[str, str, Callable[[Account], float]], ...] = (
    ("key_requests", "Requests taken from an API key", lambda a: a.requests),
    ("key_refused", "Requests refused because of the limits of a key", lambda a: a.refused),
    ("key_prompt_tokens", "Prompt tokens of a key, as in usage", lambda a: a.prompt_tokens),
    ("key_cached_tokens", "Of these, tokens from the prefix cache", lambda a: a.cached_tokens),
    ("key_generation_tokens", "Generated tokens of a key", lambda a: a.output_tokens),
    ("key_disconnects", "Choices whose client left before the end", lambda a: a.disconnects),
)

_MODELS: tuple[tuple[str, str, Callable[[Book], float]], ...] = (
    ("model_loaded", "1 while a model is loaded", lambda book: book.desk is not None),
    ("model_loads", "How often a model was loaded", lambda book: book.loads),
)


@dataclass(frozen=True, slots=True)
class Source:
    """What one page is made of."""

    books: Sequence[Book]
    accounts: Sequence[Account]


class Page:
    """A collector for one reading."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        for book in self._source.books:
            if book.metrics is not None:
                book.metrics.settle()
        for row in TABLE:
            for prefix in ("vllm:", "spola:") if row.shared else ("spola:",):
                yield self._family(row, prefix)
        for name, doc, read in _KEYS:
            family = CounterMetricFamily(f"spola:{name}", doc, labels=("key",))
            for account in self._source.accounts:
                family.add_metric((account.key.name or "none",), read(account))
            yield family
        for name, doc, number in _MODELS:
            gauge = GaugeMetricFamily(f"spola:{name}", doc, labels=("model_name",))
            for book in self._source.books:
                gauge.add_metric((book.name,), number(book))
            yield gauge
        yield self._http()
        info = GaugeMetricFamily("spola:build_info", "The version that runs", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info

    def _family(self, row: Row, prefix: str) -> Metric:
        labels = ("model_name", row.label) if row.label else ("model_name",)
        family: Any = _FAMILIES[row.kind](prefix + row.name, row.doc, labels=labels)
        for book in self._source.books:
            if book.metrics is None:
                continue
            name, value = book.name, row.read(book.metrics)
            if isinstance(value, Buckets):
                counts = value.cumulative()
                bounds = [*map(str, value.bounds), "+Inf"]
                family.add_metric((name,), list(zip(bounds, counts, strict=True)), value.total)
            elif row.label:
                for key, number in value.items():
                    family.add_metric((name, key), number)
            else:
                family.add_metric((name,), value)
        out: Metric = family
        return out

    def _http(self) -> Metric:
        labels = ("route", "method", "status")
        family = CounterMetricFamily("spola:http_requests", "Answers by route and status", labels=labels)
        total: dict[tuple[str, str, int], int] = {}
        for account in self._source.accounts:
            for at, count in account.http.items():
                total[at] = total.get(at, 0) + count
        for (route, method, status), count in sorted(total.items()):
            family.add_metric((route, method, str(status)), count)
        return family


_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def render(books: Iterable[Book], accounts: Iterable[Account]) -> bytes:
    """The page's text, in the format of ``CONTENT_TYPE``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(Source(tuple(books), tuple(accounts))))
    return generate_latest(registry)
