"""A small process between bertender and Triton, so that no server outlives its owner.

It starts the command of its arguments and waits. When its standard input closes (which also happens
when the owner is killed with SIGKILL), it stops the command and everything that the command
started, and removes the workspace. When the command ends by itself, so does the supervisor, with
the same exit status, and the workspace stays for the owner to read the log in it. Shared memory
whose name begins with SHARED_MEMORY goes in either case: Triton leaves some when a model does not
load.

LOG is a file, to which both outputs of the command are appended, or `-` for standard output. A file
that grows beyond LOG_MAX_BYTES is copied to LOG.1 and emptied. The command writes to it itself, so
that its last words are there however it ends.

    python -I -S supervisor.py WORKSPACE SHARED_MEMORY LOG LOG_MAX_BYTES STOP_TIMEOUT_S COMMAND...

It is a file of its own, run with nothing but the standard library: a process of one thread may
safely set the parent-death signal between fork and exec, one that has loaded PyTorch may not.
"""

import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

__all__ = ["main"]

POLL_S = 0.1
PR_SET_PDEATHSIG = 1
STANDARD_OUTPUT = "-"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    workspace, shared_memory, log, log_max_bytes, stop_timeout_s, *command = arguments
    with _opened(log) as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=functools.partial(_die_with_supervisor, os.getpid()),
        )
    try:
        while server.poll() is None:
            if select.select([sys.stdin], [], [], POLL_S)[0]:
                server.terminate()
                _wait(server, float(stop_timeout_s))
                shutil.rmtree(workspace, ignore_errors=True)
                return 0
            _rotate(Path(log), int(log_max_bytes))
        return server.returncode
    finally:
        _kill_group(server)
        for region in SHARED_MEMORY.glob(f"{shared_memory}*"):
            region.unlink(missing_ok=True)


def _opened(log: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if log == STANDARD_OUTPUT:
        return contextlib.nullcontext(sys.stdout.buffer)
    return Path(log).open("ab", buffering=0)


def _rotate(log: Path, max_bytes: int) -> None:
    """Copy a log that has grown too long, and empty it: its writer holds it open to append."""
    with contextlib.suppress(OSError):  # a full disk ends no server
        if log.is_file() and log.stat().st_size > max_bytes:
            shutil.copyfile(log, f"{log}.1")
            os.truncate(log, 0)


def _die_with_supervisor(supervisor: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:  # the parent died before this was set up
        os.kill(os.getpid(), signal.SIGTERM)


def _wait(server: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout_s)


def _kill_group(server: "subprocess.Popen[bytes]") -> None:
    """End what still runs: a server that would not stop, or Python stubs that outlived it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
