"""Spans of OpenTelemetry: one for each request, a child of its caller's, without a text."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from bertender.core.errors import ConfigError
from serve.door.records import TRACES_VARIABLES, Traces, traces_to
from tests.packages import ROOT
from tests.serve.door.fake_engine import BREAK, BUSY, running_door
from tests.serve.door.raw_http import body, exchange, post

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
SECRET = "a secret of 20 chars"


@pytest.fixture
def exporter() -> Any:
    module = "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    return pytest.importorskip(module, reason="pip install -e '.[otel]'").InMemorySpanExporter()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TRACES_VARIABLES, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


def spans_of(exporter: Any, requests: Sequence[bytes]) -> list[Any]:
    """Return the spans of requests over HTTP."""
    with running_door() as door:
        door.door.records.traces = Traces(exporter)
        for request in requests:
            exchange(door.http_port, request)
    return list(exporter.get_finished_spans())


def test_a_span_has_the_figures_of_its_request_and_no_text(exporter: Any) -> None:
    texts = (SECRET, "", BUSY, BREAK)
    spans = spans_of(exporter, [post(body({"id": SECRET}, data=[text])) for text in texts])
    outcomes = [span.attributes["bertender.outcome"] for span in spans]
    assert outcomes == ["ok", "invalid", "unavailable", "failed"]
    assert [span.status.is_ok for span in spans] == [True, True, False, False]
    first = spans[0]
    assert first.name == "infer classifier" and first.kind.name == "SERVER"
    assert dict(first.attributes) == {
        "bertender.protocol": "http",
        "bertender.model": "classifier",
        "bertender.texts": 1,
        "bertender.tokens": 7,
        "bertender.outcome": "ok",
        "bertender.request": 1,
    }
    assert 0 < first.end_time - first.start_time < 10e9
    assert first.resource.attributes["service.name"] == "bertender"
    assert all(SECRET not in span.to_json() for span in spans)


def test_it_is_a_child_of_its_callers_span(exporter: Any) -> None:
    with running_door() as door:
        door.door.records.traces = Traces(exporter)
        exchange(door.http_port, post(body(), f"Traceparent: {PARENT}", "tracestate: a=b"))
        url = f"127.0.0.1:{door.grpc_port}"
        with tritonclient.grpc.InferenceServerClient(url) as client:
            tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[b"plum"]], np.object_))
            client.infer("classifier", [tensor], headers={"traceparent": PARENT})
    spans = exporter.get_finished_spans()
    assert [span.attributes["bertender.protocol"] for span in spans] == ["http", "grpc"]
    for span in spans:
        assert (span.context.trace_id, span.parent.span_id) == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    "header", ["traceparent: 00-0-0-01", f"traceparent: {PARENT}\r\ntracestate: =,;\x80=a" * 9]
)
def test_a_damaged_parent_harms_nothing(header: str, exporter: Any) -> None:
    (span,) = spans_of(exporter, [post(body(), header)])
    assert span.attributes["bertender.outcome"] == "ok"


@pytest.mark.parametrize("end", ["", "/", "/v1/traces"])
def test_a_collector_gets_them_over_http(end: str, exporter: Any) -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, content))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        with running_door(otlp_endpoint=f"http://127.0.0.1:{collector.server_port}{end}") as door:
            exchange(door.http_port, post(body(data=[SECRET])))
        collector.shutdown()
        thread.join()
    ((path, content),) = received
    assert path == "/v1/traces" and b"infer classifier" in content
    assert SECRET.encode() not in content


@pytest.mark.parametrize("variable", TRACES_VARIABLES)
def test_the_variables_of_opentelemetry_turn_it_on(
    variable: str, exporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traces_to(None) is None
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    traces = traces_to(None)
    assert traces is not None
    assert traces.provider.resource.attributes["service.name"] == "mine"
    traces.close()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert traces_to(None) is None


def test_without_the_extra_an_endpoint_is_refused_and_variables_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"http://a: .*bertender\[serve,otel\]"):
        traces_to("http://a")
    monkeypatch.setenv(TRACES_VARIABLES[0], "http://a")
    assert traces_to(None) is None
    assert "no traces are sent" in caplog.text


def test_off_it_imports_nothing() -> None:
    code = (
        "import json, sys; import serve.door.process; from serve.door.records import traces_to;"
        "traces_to(None); print(json.dumps([n for n in sys.modules if 'opentelemetry.sdk' in n]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == []
