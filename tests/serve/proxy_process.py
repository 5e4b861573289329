"""The process of a proxy, and the wait for a process that is to listen."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertender.core.errors import ServingError

LOG = "log"
"""File of a proxy's output, in its folder."""
PROXY_TIMEOUT_S = 20.0
"""Until it listens, and until it has ended."""
POLL_S = 0.05


@contextmanager
def proxy_process(
    command: Sequence[str], folder: Path, is_ready: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of a proxy in its folder until the block ends.

    Raises:
        ServingError: it ends, or is not ready in time.
    """
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        try:
            wait_until(is_ready, process, PROXY_TIMEOUT_S)
        except ServingError as error:
            last = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
            raise ServingError(f"{error}; its log ends: {' | '.join(last) or '-'}") from None
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PROXY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(
    is_true: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float
) -> None:
    """Wait for something that a process brings about.

    Raises:
        ServingError: the process ends before, or the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if process.poll() is not None or time.monotonic() > deadline:
            words = subprocess.list2cmdline(map(str, process.args))  # type: ignore[arg-type]
            raise ServingError(f"not ready, status {process.poll()}: {words}")
        time.sleep(POLL_S)
