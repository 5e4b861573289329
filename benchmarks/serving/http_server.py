"""HTTP servers of `PlainModel`, each in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.plain_servers.model import ARTIFACT_VARIABLE, LENGTH_VARIABLE
from bertender.core.errors import ServingError

__all__ = ["READY_TIMEOUT_S", "child_environment", "free_port", "http_server"]

READY_TIMEOUT_S = 120.0


@contextmanager
def http_server(
    artifact: Path, longest: int, words: Sequence[str], url: str, ready: str
) -> Iterator[None]:
    """Run a module as a server of `PlainModel`, ready inside of the block.

    Args:
        artifact: what it serves.
        longest: tokens at which a text is cut.
        words: the module and its arguments.
        url: where it will listen.
        ready: path at which it says that it is ready.

    Raises:
        ServingError: it is not ready in READY_TIMEOUT_S.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env={
            **child_environment(),
            ARTIFACT_VARIABLE: str(artifact.resolve()),
            LENGTH_VARIABLE: str(longest),
        },
        start_new_session=True,
    )
    try:
        _wait_until_ready(process, f"{url}/{ready}")
        yield
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the leader of a session, and what is left of it: LitServe has processes of its own."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def child_environment() -> dict[str, str]:
    """Return the environment of a Python process that imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def free_port() -> int:
    """Return a port of loopback that nothing listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - of this machine
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    status = process.poll()
    reason = "it is still starting" if status is None else f"it ended with status {status}"
    raise ServingError(f"no server is ready at {url}: {reason}. See what it has printed above.")
