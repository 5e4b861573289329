"""The end of a command: once no request is without a response, and with all that it started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["drain", "kill_group", "remove_traces"]

POLL_S = 0.1
QUIET_S = 1.0
"""Longer than a request takes from its connection to a stub, and its response back."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here


def drain(server: "subprocess.Popen[bytes]", workspace: Path, timeout_s: float) -> None:
    """Wait until the server has ended, or has had no request for a while, or its time is up.

    Triton would wait for every open HTTP connection, though no request comes on it.
    """
    deadline = time.monotonic() + timeout_s
    quiet_since = None
    while server.poll() is None and time.monotonic() < deadline:
        if _in_flight(workspace) != 0:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > QUIET_S:
            return
        time.sleep(POLL_S)


def kill_group(server: "subprocess.Popen[bytes]") -> None:
    """End what still runs: a server that would not stop, or Python stubs that outlived it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def remove_traces(shared_memory: str, workspace: Path) -> None:
    """Remove the shared memory whose name begins so, and what stubs have noted."""
    marks = workspace.glob("candidate-*")
    for left in (*SHARED_MEMORY.glob(f"{shared_memory}*"), *_counts(workspace), *marks):
        left.unlink(missing_ok=True)


def _in_flight(workspace: Path) -> int | None:
    """Return the requests without a response, by the stubs' files; None where there is none."""
    counts = [each.read_bytes() for each in _counts(workspace) if _is_alive(each)]
    # an empty one was just created, and counts 0
    return sum(int.from_bytes(each, sys.byteorder) for each in counts) if counts else None


def _is_alive(count: Path) -> bool:
    """Return whether the stub of a count runs: what a dead one had begun gets no response."""
    return Path("/proc", count.name.rpartition("-")[2]).exists()


def _counts(workspace: Path) -> list[Path]:
    return list(workspace.glob("in-flight-*"))
