"""Processes of a server, and those that must be gone."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence

import psutil

from serve.server.server import Server
from serve.server.supervisor import STUB_NAME

TRITON_NAME = "tritonserver"


def is_ready(host: str, port: int, models: Sequence[str]) -> bool:
    """Return whether all models of a server are ready."""
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        for name in models:
            connection.request("GET", f"/v2/models/{name}/ready")
            response = connection.getresponse()
            response.read()  # the connection has the next request
            if response.status != http.HTTPStatus.OK:
                return False
    except (OSError, http.client.HTTPException):  # nothing listens yet, or a stranger does
        return False
    finally:
        connection.close()
    return True


def family_of(server: Server) -> list[psutil.Process]:
    """Return the processes behind the door: the supervisor, Triton, and its stubs."""
    assert server.door is not None
    return psutil.Process(server.door.pid).children(recursive=True)


def triton_of(server: Server) -> psutil.Process:
    (triton,) = [each for each in family_of(server) if each.name() == TRITON_NAME]
    return triton


def stub_of(server: Server) -> psutil.Process:
    (stub,) = [each for each in family_of(server) if each.name() == STUB_NAME]
    return stub


def assert_gone(processes: list[psutil.Process], timeout_s: float = 10) -> None:
    """Assert that the processes end; a zombie that nobody reaps has ended."""
    deadline = time.monotonic() + timeout_s
    while alive := [process for process in processes if _is_alive(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
