"""What a stub notes in the server's workspace, for the supervisor."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

from serve.wire import CANDIDATE_SUFFIX

# --- from serve.in_flight
# The number of requests without a response, where the supervisor reads it when the server stops.
#
# A stub keeps it in a file of 8 bytes in the server's workspace. Triton itself waits, when it
# stops,
# until its HTTP connections are closed, idle ones included, or its time is up.

WORKSPACE_VARIABLE = "BERTENDER_SERVE_WORKSPACE"
IN_FLIGHT_PREFIX = "in-flight-"  # the supervisor, which imports its own files only, repeats it
COUNT = struct.Struct("=Q")


class InFlight:
    """The requests of one stub that have no response yet; several threads may count.

    Args:
        workspace: folder for the file; without one, nothing is written.
    """

    def __init__(self, workspace: str | None) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._bytes: bytearray | mmap.mmap = bytearray(COUNT.size)
        if workspace:
            path = Path(workspace, f"{IN_FLIGHT_PREFIX}{os.getpid()}")
            path.write_bytes(bytes(COUNT.size))
            with path.open("r+b") as file:
                self._bytes = mmap.mmap(file.fileno(), COUNT.size)

    def add(self, requests: int) -> None:
        """Count requests that came, or, below 0, those that have got their response."""
        with self._lock:
            self.count += requests
            COUNT.pack_into(self._bytes, 0, self.count)


# --- from serve.candidate_mark
# A mark of the processes of candidates, where the supervisor looks: they may die.
#
# The process of a model that has died has no command line any more that would tell which it was.

CANDIDATE_PREFIX = "candidate-"  # the supervisor, which imports its own files only, repeats it


def mark_candidate(workspace: str | None, model: str) -> None:
    """Mark this process in the server's workspace where its model is a candidate."""
    if not workspace:
        return
    mark = Path(workspace, f"{CANDIDATE_PREFIX}{os.getpid()}")
    if model.endswith(CANDIDATE_SUFFIX):
        mark.touch()
    else:
        mark.unlink(missing_ok=True)  # numbers of processes are used again
