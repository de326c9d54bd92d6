"""Spans: OpenTelemetry traces, one span for each request, with where its time went as attributes.

Needs the extra ``spola[otel]`` and is off unless an endpoint is named. Names of attributes are those of
OpenTelemetry's conventions for HTTP and generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/)
and vLLM's ``gen_ai.latency.*``, which dashboards know; the rest is ``spola.*``. No texts, no secrets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spola import __version__
from spola.core.errors import MissingExtraError
from spola.server.usage import timing
from spola.server.visit import Visit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Spans"]

EXPORT_S = 3.0  # for one batch, with its repetitions: also how long a dead collector may hold up the end


class Spans:
    """Makes spans with ``provider``, which ``close`` shuts down. Used on the event loop."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("spola", __version__)
        self._parents = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Spans:
        """Spans that a thread sends to ``endpoint`` (OTLP over HTTP) in batches; those it cannot, it drops.

        ``OTEL_SERVICE_NAME``, ``OTEL_EXPORTER_OTLP_HEADERS`` and the library's other variables are obeyed.

        Raises MissingExtraError.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise MissingExtraError(
                "--otlp-traces-endpoint needs OpenTelemetry: pip install 'spola[otel]'"
            ) from None
        resource = Resource({SERVICE_NAME: "spola", SERVICE_VERSION: __version__})
        # The environment is read last, so that OTEL_SERVICE_NAME wins.
        provider = TracerProvider(resource=resource.merge(_told()), shutdown_on_exit=False)
        timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else EXPORT_S
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def note(
        self,
        visit: Visit | None,
        headers: Mapping[str, str],
        at: tuple[str, str, int],
        request_id: str,
        seconds: float,
    ) -> None:
        """The span of a request that has just ended and took ``seconds``. ``at``: route, method, status.

        A header ``traceparent`` (W3C Trace Context) names its parent.
        """
        from opentelemetry.trace import SpanKind, StatusCode

        end, (route, method, status) = time.time_ns(), at
        attributes = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "gen_ai.request.id": request_id,
            **({} if visit is None else _of_visit(visit)),
        }
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._parents.extract(headers),
            kind=SpanKind.SERVER,
            attributes={name: value for name, value in attributes.items() if value is not None},
            start_time=end - round(seconds * 1e9),
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end)

    def close(self) -> None:
        """Send what waits, and stop."""
        self._provider.shutdown()


def _told() -> Any:
    """What the environment says of this service (``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``)."""
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()


def _of_visit(visit: Visit) -> dict[str, Any]:
    """Tokens and times of a visit's requests to the model; times in seconds, over all choices."""
    out: dict[str, Any] = {"gen_ai.request.model": visit.model, "spola.key": visit.key or None}
    if not visit.jobs:
        return out
    choices = [choice for job in visit.jobs for choice in job.choices]
    out |= {
        "gen_ai.usage.input_tokens": sum(len(job.prompt_ids) for job in visit.jobs),
        "gen_ai.usage.output_tokens": sum(job.completion_tokens for job in visit.jobs),
        "gen_ai.response.finish_reasons": [choice.finish_reason or "disconnect" for choice in choices],
        "spola.cached_tokens": sum(job.cached_tokens for job in visit.jobs),
    }
    summaries = [choice.summary for choice in choices if choice.summary is not None]
    if summaries:
        times = timing(summaries)
        out |= {
            "gen_ai.latency.time_in_queue": times["queue_s"],
            "gen_ai.latency.time_in_model_prefill": times["prefill_s"],
            "gen_ai.latency.time_in_model_decode": times["decode_s"],
            "gen_ai.latency.e2e": times["total_s"],
            "spola.preemptions": times["preemptions"],
            "spola.drafted_tokens": times["drafted"],
            "spola.accepted_tokens": times["accepted"],
        }
        if any(summary.first_token_s is not None for summary in summaries):
            out["gen_ai.latency.time_to_first_token"] = round(times["queue_s"] + times["prefill_s"], 6)
    return out
