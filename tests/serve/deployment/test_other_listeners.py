"""Whoever listens at the port of a server that is being started again gets no token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from bertender.core.artifact import read_golden
from bertender.core.errors import DeploymentError, ServingError
from bertender.problems.single_label_classification import SINGLE_LABEL
from serve.deploy import ask_golden, deploy
from serve.server.targets import Place
from serve.server.workspace import RunningServer, is_listening, start_of
from serve.wire import MODEL_NAME
from tests.serve.deployment.conftest import Deployable, Versions, deployable
from tests.serve.processes import family_of

LISTENER = """
import socket, sys
kind = {"family": socket.AF_INET6, "dualstack_ipv6": True} if ":" in sys.argv[1] else {}
with socket.create_server((sys.argv[1], 0), **kind) as bound:
    print(bound.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def bound(port: int) -> socket.socket:
    """Listen at a port that a process which has just ended may still have."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def listener(host: str) -> Iterator[RunningServer]:
    """A process that listens, as a server."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", LISTENER, host], **pipes) as process:
        yield RunningServer(
            door=process.pid,
            since=start_of(process.pid),
            host="127.0.0.1",
            http_port=int(process.stdout.readline()),
            grpc_port=None,
            repository=Path("models"),
        )
        process.stdin.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"])
def test_only_the_server_itself_counts_as_listening(host: str) -> None:
    with listener(host) as server:
        assert is_listening(server)
        assert not is_listening(server.model_copy(update={"http_port": 1}))
        assert not is_listening(server.model_copy(update={"grpc_port": 1})), "at one of two"
        assert not is_listening(server.model_copy(update={"door": os.getpid()}))
        earlier = server.model_copy(update={"since": server.since - 1})
        assert not is_listening(earlier), "another process has its number now"
    with closing(bound(server.http_port)):
        assert not is_listening(server), "it has ended"


def test_a_clock_that_is_set_leaves_the_server_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener("127.0.0.1") as server:
        booted = psutil.boot_time() + 3600
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted)
        assert is_listening(server)


@contextmanager
def taken_over(running: Deployable) -> Iterator[socket.socket]:
    """Let the server be dead, and listen in its place, while its note is still there."""
    assert running.server.door is not None
    stopped = family_of(running.server)
    for process in stopped:  # they would remove the note
        process.suspend()
    try:
        running.server.door.kill()
        with closing(bound(running.server.config.http_port)) as stranger:
            stranger.settimeout(0.5)
            yield stranger
    finally:
        for process in stopped:
            process.resume()


@pytest.mark.server
@pytest.mark.slow
def test_a_stranger_at_the_port_gets_no_token(versions: Versions, tmp_path: Path) -> None:
    with deployable(versions.old, tmp_path) as running, taken_over(running) as stranger:
        with pytest.raises(ServingError, match=r"does not listen at .* Nothing was sent to it"):
            deploy(versions.new, running.server.http_url, running.config)
        with pytest.raises(TimeoutError):
            stranger.accept()


@pytest.mark.server
@pytest.mark.slow
def test_each_golden_text_is_for_the_server_alone(versions: Versions, tmp_path: Path) -> None:
    asked: list[int] = []

    def check() -> None:
        asked.append(len(asked))
        if len(asked) == 2:
            raise ServingError("another process may listen there")

    texts = dict(enumerate(read_golden(versions.old).texts[:3]))
    with deployable(versions.old, tmp_path) as running:
        place = Place(running.server.http_url, MODEL_NAME)
        with pytest.raises(DeploymentError, match="golden text 2 gets no answer: another process"):
            ask_golden(place, texts, SINGLE_LABEL, 20, check)
    assert asked == [0, 1], "before each, and none after it"
