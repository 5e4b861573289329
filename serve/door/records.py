"""What the door says of its requests: an access log, a line of JSON each, metrics, and traces.

None holds a text. The log is written by a thread of its own, so that a disk or a pipe that takes
nothing holds no request up: lines that find its queue full are counted and lost.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
from serve.door.engine import CANCELLED, CODES, FAILED, OK, UNAUTHORIZED, RefusedError, Visit
from serve.door.traces import Traces

disable_created_metrics()  # type: ignore[no-untyped-call]

STANDARD_OUTPUT = Path("-")
MOST_WAITING_LINES = 10_000
UNAUTHORIZED_LINE_S = 1.0
"""Between two lines of requests without a key that is known."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the histogram's buckets."""
PROTOCOLS = ("http", "grpc")


class Records:
    """The access log, the metrics and the traces of a door.

    Args:
        access_log: file that lines are appended to, - for standard output; None writes none. A
            file that is moved away is opened anew.
        traces: sends a span for each request; None sends none.
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
            "Refused requests that are none of inference, or were refused unread, by protocol and "
            "status.",
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
            "Inference requests that have no response yet.",
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
            "Lines of the access log that found its queue or its disk full.",
            registry=registry,
        )
        for protocol in PROTOCOLS:  # each series is there from the start, at 0
            self.seconds.labels(protocol)
            for outcome in (OK, *(code.outcome for code in CODES)):
                self.requests.labels(protocol, outcome)
        self._logged_unauthorized = -UNAUTHORIZED_LINE_S
        self.log = None if access_log is None else AccessLog(access_log, self.lost_lines)

    def refuse(self, protocol: str, status: int | str) -> None:
        """Count a request that is none of inference, or whose head or message is not read.

        It has no line in the log: anybody can send such requests, at no cost.
        """
        self.refused.labels(protocol, str(status)).inc()

    @contextmanager
    def calls_refused(self) -> Iterator[None]:
        """Count such a call of gRPC, where the block refuses it."""
        try:
            yield
        except RefusedError as error:
            self.refuse("grpc", error.code.grpc_status)
            raise

    @contextmanager
    def visit(self, protocol: str, connection: str) -> Iterator[Visit]:
        """Follow a request until its response is ready, or there is none."""
        visit = Visit(protocol, connection)
        self.under_way.inc()
        try:
            yield visit
        except RefusedError as error:
            visit.outcome = error.code.outcome
            raise
        except Exception:
            visit.outcome = FAILED.outcome
            raise
        except BaseException:  # asyncio's CancelledError
            visit.outcome = CANCELLED.outcome
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
        if self.log is not None and (visit.outcome != UNAUTHORIZED.outcome or self._may_log()):
            self.log.write(visit, seconds)
        if self.traces is not None:
            self.traces.note(visit, seconds)

    def _may_log(self) -> bool:
        """Return whether a request without a key has a line: one in a second has, since anybody
        can send them."""
        now = time.monotonic()
        if may := now - self._logged_unauthorized >= UNAUTHORIZED_LINE_S:
            self._logged_unauthorized = now
        return may

    def exposition(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.registry).decode()

    def close(self) -> None:
        """Write and send what still waits, and close the log."""
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
        # a disk that is full would get a traceback for each line that finds no room
        self.handler.handleError = lambda record: self.lost_lines.inc()  # type: ignore[method-assign]
        self.queue: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING_LINES)
        self.listener = logging.handlers.QueueListener(self.queue, self.handler)
        self.listener.start()

    def write(self, visit: Visit, seconds: float) -> None:
        """Hand a line over to the thread that writes."""
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
        """Write what still waits, and close the file."""
        self.listener.stop()
        with suppress(OSError):  # the disk is full
            self.handler.close()
