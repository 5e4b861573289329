"""The probe of containers, against the real server and against none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest

from serve.probe import main, parse, request_body
from serve.server.server import Server
from tests.packages import ROOT
from tests.quiet_server import QuietServer
from tests.serve.scripted import FULL


@pytest.mark.server
def test_a_server_that_classifies_passes(
    served: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", served.http_url]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.server
def test_a_server_with_tls_and_keys_passes_while_it_is_ready(guarded: Server) -> None:
    assert guarded.http_url.startswith("https://") and guarded.config.api_keys
    assert main(["--url", guarded.http_url]) == 0


@pytest.mark.server
def test_something_else_does_not(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    other = served.metrics_url.removesuffix("/metrics")
    assert main(["--url", other]) == 1
    assert capsys.readouterr().err.startswith(other)


def test_where_nothing_listens_it_fails_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert time.monotonic() - started < 10, "the default is to wait 20 s"
    assert "http://127.0.0.1:9: " in capsys.readouterr().err


def _slowly(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    with suppress(OSError):
        for _ in range(100):
            connection.sendall(b" ")
            time.sleep(0.1)


def _otherwise(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("respond", "message"),
    [(_slowly, "no response in 0.5 s"), (_otherwise, "what responds is no classifier")],
)
def test_odd_servers_fail_in_time(
    respond: Callable[[socket.socket], None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = threading.Thread(target=lambda: respond(listener.accept()[0]), daemon=True)
        worker.start()
        started = time.monotonic()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert main(["--url", url, "--timeout-s", "0.5"]) == 1
        assert time.monotonic() - started < 8, "the slow server takes 10 s"
    assert capsys.readouterr().err == f"{url}: {message}\n"


@pytest.mark.parametrize(
    ("status", "message", "asked"),
    [
        (503, "the queue is full", 2),
        (429, "too many requests", 2),
        (500, FULL, 2),
        (500, "the run of the model failed", 1),
    ],
)
def test_what_is_rejected_for_now_is_asked_again(status: int, message: str, asked: int) -> None:
    """Triton has no status of its own for a full shared memory."""
    seen: list[str] = []

    class Once(BaseHTTPRequestHandler):
        """Rejects the first text."""

        def do_GET(self) -> None:
            inputs = [{"name": "TEXT", "datatype": "BYTES"}]
            self.send(200, {"inputs": inputs})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.path)
            self.send(*((status, {"error": message}) if len(seen) == 1 else (200, {})))

        def send(self, code: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    with QuietServer(("127.0.0.1", 0), Once) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert main(["--url", f"http://127.0.0.1:{server.server_port}"]) == (asked == 1)
        server.shutdown()
    assert len(seen) == asked


def test_it_has_a_text_for_each_input() -> None:
    inputs = [{"name": name, "datatype": "BYTES"} for name in ("TEXT", "TEXT_PAIR")]
    sent = json.loads(request_body({"inputs": inputs}))["inputs"]
    assert [each["name"] for each in sent] == ["TEXT", "TEXT_PAIR"]
    assert all(each["data"] and each["shape"] == [1, 1] for each in sent)


def test_its_default_is_the_servers() -> None:
    settings = parse([])
    assert (settings.url, settings.timeout_s) == ("http://127.0.0.1:8000", 20)


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:8001", "localhost:80"])
def test_what_it_does_not_speak_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--url", url])
    assert f"--url: {url}: the probe speaks HTTP alone" in capsys.readouterr().err


def test_it_needs_the_standard_library_alone() -> None:
    command = [sys.executable, "-S", "-m", "serve.probe", "--url", "http://127.0.0.1:9"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and done.stderr.startswith("http://127.0.0.1:9: "), done.stderr
