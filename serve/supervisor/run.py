"""Running a command until it ends or its owner goes, and starting it again."""

import argparse
import ctypes
import functools
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import BinaryIO

from serve.supervisor.ending import drain, kill_group, remove_abandoned_environments, remove_traces
from serve.supervisor.log import Rotation, note, opened
from serve.supervisor.owner import HURRYING, STOPPING, Owner
from serve.supervisor.private_files import keep_files_private
from serve.supervisor.stubs import STUB_DIED, Stubs

RESTART_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
HEALTHY_S = 600.0
"""A command that has run so long is restarted from the first delay again."""

POLL_S = 0.1
PR_SET_PDEATHSIG = 1
STACK_BYTES = 256 * 1024 * 1024
"""Of each thread, used as needed: Triton reads nested JSON by recursion, and with the usual 8 MB,
100 kB of brackets end it."""


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    options, owner, delays_s = _parsed(arguments), Owner(), list(RESTART_DELAYS_S)
    owner.listen()
    with opened(options.log) as log:
        while not owner.gone:
            started = time.monotonic()
            status = _run(options, owner, log)
            if owner.gone or not (options.restart and owner.was_ready and status):
                break
            if time.monotonic() - started > HEALTHY_S:
                delays_s = list(RESTART_DELAYS_S)
            if not delays_s:
                times = len(RESTART_DELAYS_S) + 1
                note(log, f"the server failed {times} times; it is not started again")
                break
            note(log, f"the server ended, status {status}; it starts again in {delays_s[0]:g} s")
            owner.wait(delays_s.pop(0))
    if owner.gone:
        shutil.rmtree(options.workspace, ignore_errors=True)
    return 0 if owner.gone else status


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--lock", type=int, action="append", default=[])
    for name in ("workspace", "shared_memory", "log"):
        parser.add_argument(name)
    parser.add_argument("log_max_bytes", type=int)
    parser.add_argument("stop_timeout_s", type=float)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, owner: Owner, log: BinaryIO) -> int:
    """Run the command once; return its exit status."""
    server = subprocess.Popen(
        options.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
        pass_fds=options.lock,
        preexec_fn=functools.partial(_prepare, os.getpid()),
    )
    try:
        stubs = Stubs(server.pid, Path(options.workspace))
        rotation = Rotation(Path(options.log), options.log_max_bytes)
        while server.poll() is None:
            if owner.wait(POLL_S):
                server.terminate()
                workspace, most_s = Path(options.workspace), options.stop_timeout_s
                drain(server, workspace, most_s, lambda: owner.is_hurried)
                return 0
            rotation.run(time.monotonic())
            if stub := stubs.dead():
                note(log, f"the Python stub, process {stub}, died; the server cannot go on")
                return STUB_DIED
        return _status(server.returncode, log)
    finally:
        kill_group(server)
        remove_traces(options.shared_memory, Path(options.workspace))
        remove_abandoned_environments()


def _status(code: int, log: BinaryIO) -> int:
    """Return the exit status of the command, as a shell has it where a signal has ended it."""
    if code >= 0:
        return code
    names = {each.value: each.name for each in signal.Signals}
    name = names.get(-code, "a signal of no name")
    cause = ": the kernel sends it where memory runs out" if -code == signal.SIGKILL else ""
    note(log, f"the server was ended by {name}, signal {-code}{cause}")
    return 128 - code


def _prepare(supervisor: int) -> None:
    """Set up the process that becomes the command."""
    for number in (*STOPPING, HURRYING):
        signal.signal(number, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    keep_files_private()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:  # the parent died before this was set up
        os.kill(os.getpid(), signal.SIGTERM)
