"""A small process between bertender and Triton, so that no server outlives its owner.

It starts the command of its arguments and waits. When its standard input closes (which also happens
when the owner is killed with SIGKILL), it stops the command and everything that the command
started, once no request is without a response, and removes the workspace. When the command ends by
itself, so does the supervisor, with the same exit status, and the workspace stays for the owner to
read the log in it. Shared memory whose name begins with SHARED_MEMORY goes in either case: Triton
leaves some when a model does not load.

LOG is a file, to which both outputs of the command are appended, or `-` for standard output. A file
that grows beyond LOG_MAX_BYTES is copied to LOG.1 and emptied. The command writes to it itself, so
that its last words are there however it ends.

Triton neither reports nor replaces a Python stub that dies: it stays ready, and its requests wait
for ever. So the supervisor watches the command's own processes. When one has died and nobody has
asked for its exit status, as Triton does after it has unloaded a model, the command is ended with
status STUB_DIED. With `--restart`, a command that fails after the owner has written a line to
standard input (it was ready) is started again, after each of RESTART_DELAYS_S.

    python -I -S supervisor.py [--restart] WORKSPACE SHARED_MEMORY LOG LOG_MAX_BYTES \
        STOP_TIMEOUT_S COMMAND...

It is a file of its own, run with nothing but the standard library: a process of one thread may
safely set the parent-death signal between fork and exec, one that has loaded PyTorch may not.
"""

import argparse
import contextlib
import ctypes
import functools
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["RESTART_DELAYS_S", "STUB_DIED", "STUB_NAME", "Rotation", "main"]

STUB_DIED = 70
"""Exit status: a process of the command died, and the command went on without it."""

RESTART_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
HEALTHY_S = 600.0
"""A command that has run so long is restarted from the first delay again."""

STUB_NAME = "triton_python_backend_stub"  # the kernel cuts names to 15 bytes
POLL_S = 0.1
ROTATION_RETRY_S = 60.0
DISCOVERY_S = 1.0
GRACE_S = 0.5
QUIET_S = 1.0
"""Longer than a request takes from its connection to a stub, and its response back."""
PR_SET_PDEATHSIG = 1
STANDARD_OUTPUT = "-"
STACK_BYTES = 256 * 1024 * 1024
"""Of each thread, used as needed: Triton reads nested JSON by recursion, and with the usual 8 MB,
100 kB of brackets end it."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here
PROCESSES = Path("/proc")


class _Owner:
    """The process that started this one, as standard input shows it."""

    gone = False
    was_ready = False

    def wait(self, timeout_s: float) -> bool:
        """Wait; return whether the owner has closed its end, at once when it does."""
        deadline = time.monotonic() + timeout_s
        while not self.gone and (left := deadline - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                line = os.read(sys.stdin.fileno(), 4096)
                self.gone, self.was_ready = not line, bool(line) or self.was_ready
        return self.gone


class _Process(NamedTuple):
    """A line of /proc/PID/stat, as far as it is of use."""

    name: str
    state: str
    parent: int


class _Stubs:
    """The Python stubs that a command has started, looked up now and then."""

    def __init__(self, command: int) -> None:
        self.command = command
        self.known: list[int] = []
        self.dead_since: dict[int, float] = {}
        self.next_discovery = 0.0

    def dead(self) -> int | None:
        """Return a stub that died a while ago and that the command has not reaped."""
        now = time.monotonic()
        if now >= self.next_discovery:
            numbers = [int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit()]
            self.known = [number for number in numbers if self._is_own(_process(number))]
            self.next_discovery = now + DISCOVERY_S
        looked_up = {number: _process(number) for number in self.known}
        dead = [each for each, its in looked_up.items() if self._is_own(its) and its.state == "Z"]
        self.dead_since = {each: self.dead_since.get(each, now) for each in dead}
        return next((each for each in dead if now - self.dead_since[each] > GRACE_S), None)

    def _is_own(self, process: _Process) -> bool:
        return process.parent == self.command and STUB_NAME.startswith(process.name)


class Rotation:
    """Copies a log that has grown too long, and empties it: its writer holds it open to append."""

    def __init__(self, log: Path, max_bytes: int) -> None:
        self.log = log
        self.max_bytes = max_bytes
        self.next_try_s = 0.0

    def run(self, now_s: float) -> bool:
        """Return whether the log was copied and emptied; after an error, wait before the next."""
        if now_s < self.next_try_s:
            return False
        try:
            if not self.log.is_file() or self.log.stat().st_size <= self.max_bytes:
                return False
            shutil.copyfile(self.log, f"{self.log}.1")
            os.truncate(self.log, 0)
        except OSError:  # a full disk ends no server, and copying would only keep it busy
            self.next_try_s = now_s + ROTATION_RETRY_S
            return False
        return True


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    options, owner, delays_s = _parsed(arguments), _Owner(), list(RESTART_DELAYS_S)
    with _opened(options.log) as log:
        while not owner.gone:
            started = time.monotonic()
            status = _run(options, owner, log)
            if owner.gone or not (options.restart and owner.was_ready and status):
                break
            if time.monotonic() - started > HEALTHY_S:
                delays_s = list(RESTART_DELAYS_S)
            if not delays_s:
                times = len(RESTART_DELAYS_S) + 1
                _note(log, f"the server failed {times} times; it is not started again")
                break
            _note(log, f"the server ended, status {status}; it starts again in {delays_s[0]:g} s")
            owner.wait(delays_s.pop(0))
    if owner.gone:
        shutil.rmtree(options.workspace, ignore_errors=True)
    return 0 if owner.gone else status


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--restart", action="store_true")
    for name in ("workspace", "shared_memory", "log"):
        parser.add_argument(name)
    parser.add_argument("log_max_bytes", type=int)
    parser.add_argument("stop_timeout_s", type=float)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, owner: _Owner, log: BinaryIO) -> int:
    """Run the command once; return its exit status."""
    server = subprocess.Popen(
        options.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=functools.partial(_prepare, os.getpid()),
    )
    try:
        stubs, rotation = _Stubs(server.pid), Rotation(Path(options.log), options.log_max_bytes)
        while server.poll() is None:
            if owner.wait(POLL_S):
                server.terminate()
                _drain(server, options)
                return 0
            rotation.run(time.monotonic())
            if stub := stubs.dead():
                _note(log, f"the Python stub, process {stub}, died; the server cannot go on")
                return STUB_DIED
        return server.returncode
    finally:
        _kill_group(server)
        regions = SHARED_MEMORY.glob(f"{options.shared_memory}*")
        for left in (*regions, *_counts(Path(options.workspace))):
            left.unlink(missing_ok=True)


def _opened(log: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if log == STANDARD_OUTPUT:
        return contextlib.nullcontext(sys.stdout.buffer)
    return Path(log).open("ab", buffering=0)


def _note(log: BinaryIO, message: str) -> None:
    with contextlib.suppress(OSError):  # a full disk, or nobody reads it: ends no server
        os.write(log.fileno(), f"bertender: {message}\n".encode())


def _process(number: int) -> _Process:
    """Return what the kernel says of a process; nothing when it is gone."""
    try:
        content = (PROCESSES / str(number) / "stat").read_text(errors="replace")
    except OSError:
        return _Process("", "", 0)
    before, _, after = content.rpartition(")")  # the name may hold anything, parentheses too
    state, parent, *_ = after.split()
    return _Process(before.partition("(")[2], state, int(parent))


def _prepare(supervisor: int) -> None:
    """Set up the process that becomes the command."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:  # the parent died before this was set up
        os.kill(os.getpid(), signal.SIGTERM)


def _drain(server: "subprocess.Popen[bytes]", options: argparse.Namespace) -> None:
    """Wait until the server has ended, or has had no request for a while, or its time is up.

    Triton would wait for every open HTTP connection, though no request comes on it.
    """
    deadline = time.monotonic() + options.stop_timeout_s
    quiet_since = None
    while server.poll() is None and time.monotonic() < deadline:
        if _in_flight(Path(options.workspace)) != 0:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > QUIET_S:
            return
        time.sleep(POLL_S)


def _in_flight(workspace: Path) -> int | None:
    """Return the requests without a response, by the stubs' files; None where there is none."""
    counts = [each.read_bytes() for each in _counts(workspace)]
    # an empty one was just created, and counts 0
    return sum(int.from_bytes(each, sys.byteorder) for each in counts) if counts else None


def _counts(workspace: Path) -> list[Path]:
    return list(workspace.glob("in-flight-*"))


def _kill_group(server: "subprocess.Popen[bytes]") -> None:
    """End what still runs: a server that would not stop, or Python stubs that outlived it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
