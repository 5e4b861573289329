"""The door's process with either engine: it leaves without loss, and starts again what hangs."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import uvloop

from bertender.core.artifact import Artifact
from bertender.core.errors import PortTakenError
from serve.config import ServeConfig
from serve.door.process import Process, most_connections
from serve.server.server import Server
from tests.packages import ROOT
from tests.serve.door.fake_engine import FakeEngine
from tests.serve.processes import assert_gone, family_of, stub_of
from tests.serve.routes import ask_http
from tests.served import served, until

pytestmark = pytest.mark.server

INFER = "/v2/models/classifier/infer"
TEXT = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["apple saw"]}
BODY = json.dumps({"inputs": [TEXT]})
CALLERS = 6


@pytest.fixture(params=["triton", "embedded"])
def running(
    request: pytest.FixtureRequest, onnx_artifact: Artifact, tmp_path: Path
) -> Iterator[Server]:
    with served(onnx_artifact, tmp_path, server=request.param, grpc_port=None) as server:
        yield server


def ask_until_told_to_leave(port: int) -> list[int]:
    """Send request after request on one connection; return the statuses of the responses."""
    statuses = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.connect()
    try:
        while True:
            connection.request("POST", INFER, BODY)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
            if response.headers.get("Connection", "").lower() == "close":
                return statuses
    finally:
        connection.close()


@pytest.mark.fault(
    "the door is told to leave (SIGTERM)",
    "readiness is 503 at once; what callers have sent is answered",
)
def test_keep_alive_callers_lose_nothing(running: Server) -> None:
    port = running.config.http_port
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        calls = [pool.submit(ask_until_told_to_leave, port) for _ in range(CALLERS)]
        time.sleep(1)
        pool.submit(running.stop)
        statuses = [status for call in calls for status in call.result(20)]
    assert len(statuses) > 3 * CALLERS and {*statuses} == {200}


@pytest.mark.fault(
    "the door is told to leave (SIGTERM)",
    "readiness is 503 at once; what callers have sent is answered",
)
def test_readiness_ends_before_the_door_does(running: Server) -> None:
    """A request that it has begun to read holds it."""
    port = running.config.http_port
    unfinished = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    unfinished.putrequest("POST", INFER)
    unfinished.putheader("Content-Length", str(len(BODY)))
    unfinished.endheaders()
    with ThreadPoolExecutor(1) as pool:
        time.sleep(0.3)
        stopping = pool.submit(running.stop)
        time.sleep(0.4)
        assert ask_http(port, "GET", "/v2/health/ready")[0] == 503
        assert ask_http(port, "GET", "/v2/health/live")[0] == 200
        unfinished.send(BODY.encode())
        response = unfinished.getresponse()
        assert response.status == 200 and response.headers["Connection"] == "close"
        stopping.result(20)


@pytest.mark.fault(
    "a process behind the door hangs", "requests get 502 or 503 until it has started again"
)
@pytest.mark.slow
def test_what_stands_still_behind_it_is_started_again(running: Server) -> None:
    port, before = running.config.http_port, family_of(running)
    (before[0] if running.config.is_embedded else stub_of(running)).suspend()
    wait_for_readiness(port, 503, timeout_s=15)
    wait_for_readiness(port, 200, timeout_s=60)
    assert ask_http(port, "POST", INFER, BODY)[0] == 200
    assert_gone(before)
    assert "'classifier' gave no answer for 15 s; it starts again" in running.log_file.read_text()


@pytest.mark.fault("the door itself stands still for a while", "nothing is started again for it")
@pytest.mark.slow
def test_a_door_that_stood_still_blames_nobody(running: Server) -> None:
    assert running.door is not None
    door, before = psutil.Process(running.door.pid), family_of(running)
    door.suspend()
    time.sleep(20)
    door.resume()
    time.sleep(5)
    assert family_of(running) == before
    assert ask_http(running.config.http_port, "POST", INFER, BODY)[0] == 200


@pytest.mark.fault(
    "the door is told to leave (SIGTERM)",
    "readiness is 503 at once; what callers have sent is answered",
)
@pytest.mark.parametrize("is_ignored", [True, False], ids=["nohup", "a terminal"])
def test_the_end_of_a_terminal_ends_what_was_not_started_by_nohup(
    is_ignored: bool, tmp_path: Path
) -> None:
    left = []

    async def run() -> None:
        process = Process(FakeEngine(), ServeConfig(http_port=0, metrics_port=0), tmp_path)
        process.leave_at_signals()

        def ready(config: ServeConfig) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.3)
            left.append(process.door.leaving)
            process.leave()

        await process.run(ready)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        uvloop.run(run())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert left == [not is_ignored]


@pytest.mark.fault("another server takes the port at the start", "the later one names it and ends")
def test_a_port_that_another_takes_while_the_models_load_is_named(tmp_path: Path) -> None:
    """Both have bound it before either listened."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        class Slow(FakeEngine):
            async def start(self) -> None:
                other.listen()

        async def run() -> None:
            config = ServeConfig(http_port=0, metrics_port=other.getsockname()[1])
            process = Process(Slow(), config, tmp_path)
            await process.run(lambda ready: process.leave())

        with pytest.raises(PortTakenError, match="--metrics-port"):
            uvloop.run(run())


@pytest.mark.fault(
    "idle connections take all files", "others, and what is started again, find some"
)
def test_idle_connections_leave_files_to_others(onnx_artifact: Artifact, tmp_path: Path) -> None:
    few, most = 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, *[resource.RLIMIT_NOFILE, (most, most)])
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        server = stack.enter_context(served(onnx_artifact, tmp_path, server="embedded"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for _ in range(few):
            for port in (server.config.http_port, server.config.grpc_port):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert ask_http(server.config.http_port, "POST", INFER, BODY)[0] == 200
        family_of(server)[0].kill()
        until(lambda: ask_http(server.config.http_port, "POST", INFER, BODY)[0] == 200)


@pytest.mark.fault(
    "idle connections take all files", "others, and what is started again, find some"
)
def test_where_files_are_few_connections_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(100, 400)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert most_connections() == 48 and limits[-1] == (400, 400)
    limits.append((10, 10))
    assert most_connections() == 1
    for most in (2**20, resource.RLIM_INFINITY):
        limits.append((1024, most))
        assert most_connections() == 1000 and limits[-1] == (7064, most)
    page = (ROOT / "docs" / "serving" / "deploy.md").read_text()
    assert f"fewer where `ulimit -Hn` is below {limits[-1][0]:,}" in page


def wait_for_readiness(port: int, status: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while ask_http(port, "GET", "/v2/health/ready")[0] != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.fault("the door is killed", "everything behind it ends with it")
def test_everything_ends_with_a_killed_door(running: Server) -> None:
    assert running.door is not None
    family = family_of(running)
    running.door.kill()
    assert_gone(family)
    # without Triton's supervisor, the next start cleans up
    assert running.config.is_embedded or not running.workspace.path.exists()
