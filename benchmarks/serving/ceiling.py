"""The ceiling of a server: its model in a process of its own, on the server's core."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.common.pinning import pinned
from benchmarks.serving.http_server import child_environment
from benchmarks.serving.records import CALLS, CeilingCell
from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError

__all__ = ["time_in_process"]

IN_PROCESS = "benchmarks.serving.in_process"


def time_in_process(
    artifact: Artifact,
    texts: Sequence[str],
    seconds: float,
    core: int | None,
    *,
    calls: Sequence[int] = CALLS,
    pause_ms: float = 0.0,
) -> list[CeilingCell]:
    """Time calls of the model in a new process.

    Args:
        artifact: the model.
        texts: drawn from.
        seconds: of each number of texts a call, at least.
        core: of the process; None for all.
        calls: numbers of texts a call.
        pause_ms: before each call.

    Raises:
        ServingError: the process failed.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump([*texts], file)
        file.flush()
        command = [
            *(sys.executable, "-m", IN_PROCESS, str(artifact.path), file.name),
            *("--seconds", str(seconds), "--calls", ",".join(map(str, calls))),
            *("--pause-ms", str(pause_ms)),
        ]
        with pinned(core):
            done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    if done.returncode:
        raise ServingError(f"the model in process failed: {done.stderr.strip()[-500:]}")
    return [CeilingCell(**cell) for cell in json.loads(done.stdout)]
