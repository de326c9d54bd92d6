"""OpenTelemetry: a span for each request, with the times of its parts; off by default; an extra."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from spola.cli import main
from spola.core.errors import MissingExtraError
from spola.server.options import ServerOptions
from spola.server.spans import Spans
from support.running import Running
from support.serving import ask, serving

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def traced(exporter: InMemorySpanExporter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider)
    with serving(
        tmp_path_factory.mktemp("traced"), delay=0.002, server=ServerOptions(spans=spans)
    ) as running:
        yield running
    spans.close()


def spans_of(exporter: InMemorySpanExporter, request_id: str) -> list[ReadableSpan]:
    return [
        one
        for one in exporter.get_finished_spans()
        if (one.attributes or {})["gen_ai.request.id"] == request_id
    ]


def only(exporter: InMemorySpanExporter, request_id: str) -> tuple[ReadableSpan, dict[str, Any]]:
    end = time.monotonic() + 10  # the answer is read before its span ends
    while not spans_of(exporter, request_id) and time.monotonic() < end:
        time.sleep(0.005)
    (span,) = spans_of(exporter, request_id)
    return span, dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_with_the_times_of_its_usage(
    traced: Running, exporter: InMemorySpanExporter, stream: bool
) -> None:
    body = {"prompt": "abc", "max_tokens": 5, "n": 2, "stream": stream}
    answer = ask(traced, "/v1/completions", body, {"X-Request-Id": f"one-{stream}"})
    assert answer.status == 200
    span, told = only(exporter, f"one-{stream}")
    assert (span.name, span.kind, span.parent) == ("POST /v1/completions", SpanKind.SERVER, None)
    assert span.status.status_code is StatusCode.UNSET
    assert (told["http.route"], told["http.response.status_code"]) == ("/v1/completions", 200)
    assert told["gen_ai.request.model"] == "tiny"
    assert told["gen_ai.usage.input_tokens"] == len(traced.service.prompt_ids("abc"))
    assert told["gen_ai.usage.output_tokens"] == 10
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    parts = [told[f"gen_ai.latency.time_in_{part}"] for part in ("queue", "model_prefill", "model_decode")]
    assert min(parts) >= 0
    assert parts[2] > 0
    assert sum(parts) == pytest.approx(told["gen_ai.latency.e2e"], abs=1e-5)
    assert told["gen_ai.latency.time_to_first_token"] == pytest.approx(parts[0] + parts[1], abs=1e-5)
    assert span.start_time is not None
    assert span.end_time is not None
    assert (span.end_time - span.start_time) / 1e9 >= 5 * 0.002  # so long are the parrot's five steps
    if not stream:
        timing = answer.body["usage"]["timing"]
        assert [timing["queue_s"], timing["prefill_s"], timing["decode_s"]] == parts
    assert "abc" not in str(told.values())


def test_the_callers_trace_goes_on(traced: Running, exporter: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "two"}
    ask(traced, "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers)
    span, _ = only(exporter, "two")
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == f"{span.get_span_context().trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    ask(
        traced,
        "/v1/completions",
        {"prompt": "a", "max_tokens": 1},
        {"traceparent": "ÿ", "X-Request-Id": "odd"},
    )
    assert only(exporter, "odd")[0].parent is None


def test_refusals_are_spans_and_what_is_asked_all_the_time_is_not(
    traced: Running, exporter: InMemorySpanExporter
) -> None:
    assert ask(traced, "/v1/completions", {"prompt": 5}, {"X-Request-Id": "wrong"}).status == 400
    span, told = only(exporter, "wrong")
    assert told["http.response.status_code"] == 400
    assert span.status.status_code is StatusCode.UNSET
    assert "gen_ai.usage.input_tokens" not in told
    ask(traced, "/secret-path", None, {"X-Request-Id": "nowhere"})
    assert only(exporter, "nowhere")[0].name == "GET other"
    ask(traced, "/health", None, {"X-Request-Id": "quiet"})
    assert spans_of(exporter, "quiet") == []


def test_a_failure_of_the_server_is_marked(traced: Running, exporter: InMemorySpanExporter) -> None:
    traced.state.leaving = True
    try:
        assert ask(traced, "/v1/completions", {"prompt": "a"}, {"X-Request-Id": "leaving"}).status == 503
    finally:
        traced.state.leaving = False
    assert only(exporter, "leaving")[0].status.status_code is StatusCode.ERROR


def test_without_the_extra_one_line_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingExtraError, match=r"spola\[otel\]"):
        Spans.to("http://127.0.0.1:1/v1/traces")
    done = CliRunner().invoke(main, ["serve", "--port", "0", "--otlp-traces-endpoint", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'spola[otel]'" in done.stderr
