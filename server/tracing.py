"""OpenTelemetry traces: a span for every request, part of the caller's trace. Needs ``tidegate[otel]``.

Enabled when ``OTEL_EXPORTER_OTLP_ENDPOINT`` says where spans go; the other variables of OpenTelemetry apply too. A span
carries the route, the status and, where it has them, stream, batch-ids, procedure and sequence.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tidegate.errors import TidegateError


class Tracing:
    """Makes the spans of one server."""

    def __init__(self, app: str) -> None:
        if importlib.util.find_spec("opentelemetry.exporter") is None:
            raise TidegateError(
                "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need OpenTelemetry; pip install 'tidegate[otel]'"
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": "tidegate", "tidegate.app": app}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("tidegate.server")

    def begin(self, method: str, headers: Mapping[str, str]) -> Any:
        """A span for this request, a child of the caller's if the headers name one."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(method, context=extract(headers), kind=SpanKind.SERVER)

    def end(self, span: Any, method: str, route: str, status: int, facts: Mapping[str, Any]) -> None:
        """The request was answered."""
        from opentelemetry.trace import Status, StatusCode

        span.update_name(f"{method} {route}")
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        for name, value in facts.items():
            span.set_attribute(f"tidegate.{name}", value)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
