"""A small process between bertender and Triton, so that no server outlives its owner.

It starts the command of its arguments and waits. When its standard input closes (which also happens
when the owner is killed with SIGKILL), it stops the command and everything that the command
started, and removes the workspace. When the command ends by itself, so does the supervisor, with
the same exit status, and the workspace stays for the owner to read the log in it. Shared memory
whose name begins with SHARED_MEMORY goes in either case: Triton leaves some when a model does not
load.

    python -I -S supervisor.py WORKSPACE SHARED_MEMORY LOG STOP_TIMEOUT_S COMMAND...

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

__all__ = ["main"]

POLL_S = 0.1
PR_SET_PDEATHSIG = 1
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    workspace, shared_memory, log, stop_timeout_s, *command = arguments
    with Path(log).open("wb") as output:
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
        return server.returncode
    finally:
        _kill_group(server)
        for region in SHARED_MEMORY.glob(f"{shared_memory}*"):
            region.unlink(missing_ok=True)


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
