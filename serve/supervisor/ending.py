"""The end of a command: once no request is without a response, and with all that it started."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.1
QUIET_S = 1.0
"""Longer than a request takes from its connection to a stub, and its response back."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here
PROCESSES = Path("/proc")

ENVIRONMENTS = Path("/tmp")  # noqa: S108 - Triton's own choice, nothing is made here
ENVIRONMENT = "python_env_??????"
"""Of the folder that Triton's Python backend makes at each start, and removes when it ends itself.
It stays empty here: no model brings an environment of its own."""
ENVIRONMENT_MODE = 0o700
"""Of a folder that mkdtemp makes, as the backend does."""
LEAST_AGE_S = 60.0
"""Of a folder that is removed: a newer one may be somebody's who is about to fill it."""
BACKEND_LIBRARY = b"/libtriton_python.so"
CLOCK_S = 2.0
"""Least age of a process's folder to be that of an earlier process; clocks are read one by one."""
START_TIME = 19  # of /proc/PID/stat, from the field after the name


def drain(
    server: "subprocess.Popen[bytes]",
    workspace: Path,
    timeout_s: float,
    is_hurried: Callable[[], bool],
) -> None:
    """Wait until the server has ended, or has had no request for a while, or its time is up, or
    somebody does not want to wait.

    Triton would wait for every open HTTP connection, though no request comes on it.
    """
    deadline = time.monotonic() + timeout_s
    quiet_since = None
    while server.poll() is None and time.monotonic() < deadline and not is_hurried():
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


def remove_abandoned_environments(
    folder: Path = ENVIRONMENTS, processes: Path = PROCESSES, least_age_s: float = LEAST_AGE_S
) -> None:
    """Remove the empty folders that Triton has made there for processes which have ended.

    A folder has no owner's name. It is that of a process of the same user which runs the Python
    backend and is not younger than the folder; where there is none, its process has ended.
    """
    own = [*_environments(folder, time.time() - least_age_s)]
    starts = [*_starts_of_backends(processes)] if own else []
    for each, made in own:
        if all(start > made + CLOCK_S for start in starts):
            with contextlib.suppress(OSError):  # it has something in it, or is gone
                each.rmdir()


def _environments(folder: Path, made_before: float) -> Iterator[tuple[Path, float]]:
    """Yield the folders that may be Triton's of this user, and when they were made."""
    for each in folder.glob(ENVIRONMENT):
        with contextlib.suppress(OSError):  # it has just gone
            state = each.lstat()
            is_like_one = stat.S_ISDIR(state.st_mode) and state.st_mode & 0o777 == ENVIRONMENT_MODE
            if is_like_one and state.st_uid == os.geteuid() and state.st_ctime <= made_before:
                yield each, state.st_ctime


def _starts_of_backends(processes: Path) -> Iterator[float]:
    """Yield when the processes of this user that may run the Python backend have started, in
    seconds of the clock of files."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for process in processes.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if process.stat().st_uid != os.geteuid() or not _may_run_backend(process):
                continue
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield booted + int(fields[START_TIME]) / os.sysconf("SC_CLK_TCK")


def _may_run_backend(process: Path) -> bool:
    try:
        return BACKEND_LIBRARY in (process / "maps").read_bytes()
    except PermissionError:  # of a process that hides them
        return True


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
