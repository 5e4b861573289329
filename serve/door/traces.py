"""Traces of OpenTelemetry: a span for each inference request, without its texts.

Its libraries are an extra, and are imported only where spans are sent: by the setting
`otlp_endpoint`, or by the variables that OpenTelemetry has for every program, OTEL_*.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from bertender.core.errors import ConfigError
from serve.door.engine import CODES, Visit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


logger = logging.getLogger(__name__)

PATH = "/v1/traces"
"""Of a collector, for spans over HTTP."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables that turn traces on."""
PARENT = ("traceparent", "tracestate")
"""Headers of https://www.w3.org/TR/trace-context/."""
ERRORS = {code.outcome for code in CODES if code.http_status >= 500}


CLOSE_S = 2.0
"""Longest wait for a collector at the end."""


class Traces:
    """Sends a span for each request, in a thread of its own.

    Args:
        exporter: sends them; None sends them over HTTP, as the variables OTEL_* say.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        own = {"service.name": "bertender", "service.version": metadata.version("bertender")}
        resource = Resource(own).merge(OTELResourceDetector().detect())
        self.provider = TracerProvider(resource=resource)
        self.provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self.tracer = self.provider.get_tracer("bertender")
        self.propagator = TraceContextTextMapPropagator()

    def note(self, visit: Visit, seconds: float) -> None:
        """Send the span of a request that has just ended, as a child of its caller's."""
        from opentelemetry.trace import SpanKind, StatusCode

        attributes: dict[str, str | int] = {
            "bertender.protocol": visit.protocol,
            "bertender.model": visit.model,
            "bertender.texts": visit.texts,
            "bertender.tokens": visit.tokens,
            "bertender.outcome": visit.outcome,
        }
        if visit.number is not None:
            attributes["bertender.request"] = visit.number
        end_ns = time.time_ns()
        span = self.tracer.start_span(
            f"infer {visit.model}".rstrip(),
            context=self.propagator.extract(_parent(visit)),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=end_ns - int(seconds * 1e9),
        )
        if visit.outcome in ERRORS:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def close(self) -> None:
        """Send what still waits, within CLOSE_S: a collector may be away."""
        closing = threading.Thread(target=self.provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _parent(visit: Visit) -> Mapping[str, str]:
    """Return the headers of a request that name its caller's span."""
    pairs = [
        [each.decode("latin-1") if isinstance(each, bytes) else each for each in pair]
        for pair in visit.headers
    ]
    return {name.lower(): value for name, value in pairs if name.lower() in PARENT}


def traces_to(endpoint: str | None) -> Traces | None:
    """Return where spans go; None sends none.

    Args:
        endpoint: URL of a collector; None reads it from the variables of OpenTelemetry, if any.

    Raises:
        ConfigError: an endpoint is set, and the libraries are not installed.
    """
    if endpoint is None and (
        not any(os.environ.get(name) for name in ENDPOINTS)
        or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return None
    try:
        if endpoint is None:
            return Traces()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return Traces(OTLPSpanExporter(endpoint.removesuffix(PATH).rstrip("/") + PATH))
    except ModuleNotFoundError:
        reason = "OpenTelemetry is not installed. Install it: pip install 'bertender[serve,otel]'"
        if endpoint is not None:
            raise ConfigError(f"otlp_endpoint={endpoint}: {reason}.") from None
        # many platforms set the variables for whatever they run
        logger.warning("no traces are sent: %s", reason)
        return None
