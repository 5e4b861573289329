"""Records of the door's requests: an access log of JSON lines, metrics, and traces.

None of them contains texts. A thread writes the log, so that a blocked disk or pipe delays no
request; lines are counted and dropped if its queue is full.

A trace has a span for each inference request. The libraries of OpenTelemetry are an extra, imported
only if spans are sent: by the setting `otlp_endpoint`, or by OpenTelemetry's general variables,
OTEL_*.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from bertender.core.errors import ConfigError
from serve.config import STANDARD_OUTPUT
from serve.door.engine import OK, Code, RefusedError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

disable_created_metrics()  # type: ignore[no-untyped-call]

MOST_WAITING_LINES = 10_000
UNAUTHORIZED_LINE_S = 1.0
"""Seconds between two lines for requests without a known key."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the histogram's buckets."""
PROTOCOLS = ("http", "grpc")


@dataclass
class Visit:
    """An inference request in the door."""

    protocol: str
    connection: str
    model: str = ""
    id: str = ""
    key: str | None = None
    number: int | None = None
    """Number of the request, also in the logs of the engine."""
    texts: int = 0
    tokens: int = 0
    """Estimated tokens of its texts; see `Door.tokens`."""
    outcome: str = OK
    headers: Iterable[tuple[str | bytes, str | bytes]] = ()
    """Headers as received, with the span of the caller."""
    started: float = field(default_factory=time.perf_counter)


class Records:
    """The access log, the metrics and the traces of a door.

    Args:
        access_log: file for log lines, - for standard output; None for no log. A file that was
            moved is opened again.
        traces: sends a span for each request; None for no traces.
    """

    def __init__(self, access_log: Path | None = None, traces: Traces | None = None) -> None:
        self.traces = traces
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "bertender_door_requests",
            "Inference requests by protocol and outcome.",
            ("protocol", "outcome"),
            registry=registry,
        )
        self.refused = Counter(
            "bertender_door_refused",
            "Refused requests that are not of inference, or were not read, by protocol and status.",
            ("protocol", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "bertender_door_request_seconds",
            "Time from a request's head to its response, of those that got a prediction.",
            ("protocol",),
            buckets=SECONDS,
            registry=registry,
        )
        self.under_way = Gauge(
            "bertender_door_requests_under_way",
            "Inference requests in flight.",
            registry=registry,
        )
        self.texts = Counter(
            "bertender_door_texts", "Texts that got a prediction.", registry=registry
        )
        self.tokens = Counter(
            "bertender_door_tokens",
            "Tokens of texts that got a prediction, about, by API key.",
            ("key",),
            registry=registry,
        )
        self.held_bytes = Gauge(
            "bertender_door_held_bytes",
            "Bytes of requests in memory, as they were sent or inflated.",
            registry=registry,
        )
        self.ready = Gauge("bertender_door_ready", "1 while readiness is.", registry=registry)
        self.lost_lines = Counter(
            "bertender_door_lost_log_lines",
            "Lost lines of the access log, as its queue or disk was full.",
            registry=registry,
        )
        for protocol in PROTOCOLS:  # all series start at 0
            self.seconds.labels(protocol)
            for outcome in (OK, *(code.outcome for code in Code)):
                self.requests.labels(protocol, outcome)
        self._logged_unauthorized = -UNAUTHORIZED_LINE_S
        self.log = None if access_log is None else AccessLog(access_log, self.lost_lines)

    def refuse(self, protocol: str, status: int | str) -> None:
        """Count a request other than inference, or one whose head or message was not read.

        It is not logged, since anybody can send many of these.
        """
        self.refused.labels(protocol, str(status)).inc()

    @contextmanager
    def calls_refused(self) -> Iterator[None]:
        """Count refused gRPC calls of this kind in the block."""
        try:
            yield
        except RefusedError as error:
            self.refuse("grpc", error.code.grpc_status)
            raise

    @contextmanager
    def visit(self, protocol: str, connection: str) -> Iterator[Visit]:
        """Record a request until its response is ready, or there is none."""
        visit = Visit(protocol, connection)
        self.under_way.inc()
        try:
            yield visit
        except RefusedError as error:
            visit.outcome = error.code.outcome
            raise
        except Exception:
            visit.outcome = Code.FAILED.outcome
            raise
        except BaseException:  # asyncio's CancelledError
            visit.outcome = Code.CANCELLED.outcome
            raise
        finally:
            self.under_way.dec()
            self._note(visit)

    def _note(self, visit: Visit) -> None:
        seconds = time.perf_counter() - visit.started
        self.requests.labels(visit.protocol, visit.outcome).inc()
        if visit.outcome == OK:
            self.seconds.labels(visit.protocol).observe(seconds)
            self.texts.inc(visit.texts)
            self.tokens.labels(visit.key or "").inc(visit.tokens)
        if self.log is not None and (visit.outcome != Code.UNAUTHORIZED.outcome or self._may_log()):
            self.log.write(visit, seconds)
        if self.traces is not None:
            self.traces.note(visit, seconds)

    def _may_log(self) -> bool:
        """Return whether to log a request without a known key: one per second, since anybody can
        send many."""
        now = time.monotonic()
        if may := now - self._logged_unauthorized >= UNAUTHORIZED_LINE_S:
            self._logged_unauthorized = now
        return may

    def exposition(self) -> str:
        """Return the metrics in Prometheus's format."""
        return generate_latest(self.registry).decode()

    def close(self) -> None:
        """Flush the log and the traces, and close the log."""
        if self.log is not None:
            self.log.close()
        if self.traces is not None:
            self.traces.close()


class AccessLog:
    """Writes a line for each request.

    Raises:
        ConfigError: its file cannot be written.
    """

    def __init__(self, file: Path, lost_lines: Counter) -> None:
        self.lost_lines = lost_lines
        self.handler: logging.Handler
        if file == STANDARD_OUTPUT:
            self.handler = logging.StreamHandler(sys.stdout)
        else:
            try:
                self.handler = logging.handlers.WatchedFileHandler(file, encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"access_log={file}: {error.strerror}. Name a file that this user can write "
                    "with --access-log, or - for standard output."
                ) from None
        # a full disk would cause a traceback for each line
        self.handler.handleError = lambda record: self.lost_lines.inc()  # type: ignore[method-assign]
        self.queue: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING_LINES)
        self.listener = logging.handlers.QueueListener(self.queue, self.handler)
        self.listener.start()

    def write(self, visit: Visit, seconds: float) -> None:
        """Queue a line for the writing thread."""
        line = msgspec.json.encode(
            {
                "time": round(time.time(), 3),
                "request": visit.number,
                "id": visit.id,
                "protocol": visit.protocol,
                "connection": visit.connection,
                "key": visit.key,
                "model": visit.model,
                "texts": visit.texts,
                "tokens": visit.tokens,
                "ms": round(1000 * seconds, 3),
                "outcome": visit.outcome,
            }
        ).decode()
        record = logging.LogRecord("access", logging.INFO, "", 0, line, None, None)
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.lost_lines.inc()

    def close(self) -> None:
        """Flush the queue, and close the file."""
        self.listener.stop()
        with suppress(OSError):  # the disk is full
            self.handler.close()


TRACES_PATH = "/v1/traces"
"""Path of a collector for spans over HTTP."""
TRACES_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables that turn traces on."""
PARENT_HEADERS = ("traceparent", "tracestate")
"""Headers of https://www.w3.org/TR/trace-context/."""
ERROR_OUTCOMES = {code.outcome for code in Code if code.http_status >= 500}


CLOSE_TRACES_S = 2.0
"""Longest wait for a collector at the end."""


class Traces:
    """Sends a span for each request, in a separate thread.

    Args:
        exporter: sends the spans; None for HTTP, configured by the variables OTEL_*.
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
        """Send the span of a request that has just ended, as a child of its caller's span."""
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
        if visit.outcome in ERROR_OUTCOMES:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def close(self) -> None:
        """Send queued spans, within CLOSE_TRACES_S: a collector may be down."""
        closing = threading.Thread(target=self.provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TRACES_S)


def _parent(visit: Visit) -> Mapping[str, str]:
    """Return a request's headers with its caller's span."""
    pairs = [
        [each.decode("latin-1") if isinstance(each, bytes) else each for each in pair]
        for pair in visit.headers
    ]
    return {name.lower(): value for name, value in pairs if name.lower() in PARENT_HEADERS}


def traces_to(endpoint: str | None) -> Traces | None:
    """Return the sender of spans; None if none are sent.

    Args:
        endpoint: URL of a collector; None for that in OpenTelemetry's variables, if any.

    Raises:
        ConfigError: an endpoint is set, but the libraries are not installed.
    """
    if endpoint is None and (
        not any(os.environ.get(name) for name in TRACES_VARIABLES)
        or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return None
    try:
        if endpoint is None:
            return Traces()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return Traces(
            OTLPSpanExporter(endpoint.removesuffix(TRACES_PATH).rstrip("/") + TRACES_PATH)
        )
    except ModuleNotFoundError:
        reason = "OpenTelemetry is not installed. Install it: pip install 'bertender[serve,otel]'"
        if endpoint is not None:
            raise ConfigError(f"otlp_endpoint={endpoint}: {reason}.") from None
        # many platforms set the variables for all programs
        logger.warning("no traces are sent: %s", reason)
        return None
