"""Processes that must be gone."""

from __future__ import annotations

import time

import psutil


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
