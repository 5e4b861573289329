"""Processes of a server, and those that must be gone."""

from __future__ import annotations

import time

import psutil

from serve.server.server import TritonServer
from serve.server.supervisor import STUB_NAME


def family_of(server: TritonServer) -> list[psutil.Process]:
    assert server.supervisor is not None
    return psutil.Process(server.supervisor.pid).children(recursive=True)


def stub_of(server: TritonServer) -> psutil.Process:
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
