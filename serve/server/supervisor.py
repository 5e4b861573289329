"""A small process between the door and Triton, so that no server outlives its owner.

The supervisor starts the command in its arguments and waits. When its standard input closes (also
if the owner is killed with SIGKILL), or at SIGTERM, it stops the command and all processes that the
command started; SIGUSR1 skips the wait for the command. If the command ends by itself, the
supervisor ends with the same exit status. It removes the workspace if the owner has ended, and else
leaves it to the owner, which may start another command in it. SIGUSR2 reports that the command does
not answer, and kills it. In all cases the supervisor removes shared memory whose name begins with
SHARED_MEMORY, which Triton leaves when a model does not load, and the empty folders that Triton
leaves in /tmp.

LOG is a file, to which both outputs of the command are appended, or `-` for standard output. A file
that grows beyond LOG_MAX_BYTES is copied to LOG.1 and emptied. The command writes to the file
directly, so that its last messages are there however it ends.

Triton neither reports nor replaces a dead Python stub: it stays ready, and its requests wait for
ever. So the supervisor watches the command's processes. If one has died and its exit status was not
collected, as Triton does after unloading a model, the command is ended with status STUB_DIED. The
same holds for the shell with which Triton starts a stub.

    python -I -S supervisor.py [--lock DESCRIPTOR] WORKSPACE SHARED_MEMORY \
        LOG LOG_MAX_BYTES STOP_TIMEOUT_S COMMAND...

The command inherits DESCRIPTOR, an open file that marks the workspace as in use. TOKEN_MARK in an
argument stands for the value of the variable TOKEN_VARIABLE, so that no command line written by
bertender has the token. Triton only takes it as an argument, which is overwritten in Triton's
memory as soon as Triton has read it.

The file only uses the standard library: a process with a single thread may safely set the
parent-death signal between fork and exec, but not a process that has loaded PyTorch.
"""

import argparse
import contextlib
import ctypes
import functools
import os
import platform
import resource
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

TOKEN_VARIABLE = "BERTENDER_ADMIN_TOKEN"  # noqa: S105 - a name
TOKEN_MARK = f"@{TOKEN_VARIABLE}"

POLL_S = 0.1

STUB_DIED = 70
"""Exit status if a stub of the command died and the command continued without it."""
STUB_NAME = "triton_python_backend_stub"  # the kernel cuts names to 15 bytes
SHELL = "bash"
"""Triton runs `bash -c "exec STUB ..."`; a process that dies with this name started no stub."""
# copied from `serve.wire`, which cannot be imported here
CANDIDATE_SUFFIX = "-candidate"
CANDIDATE_PREFIX = "candidate-"

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HURRYING = signal.SIGUSR1
KILLING = signal.SIGUSR2
HUNG = 71
"""Exit status if the owner found that the command does not answer, and sent KILLING."""
STANDARD_OUTPUT = "-"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here
PROCESSES = Path("/proc")
# fields of /proc/PID/stat after the name, which may have spaces
STATE, PARENT, START_TIME, FIRST_ARGUMENT, LAST_ARGUMENT = 0, 1, 19, 45, 46


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--lock", type=int, action="append", default=[])
    for name in ("workspace", "shared_memory", "log"):
        parser.add_argument(name)
    parser.add_argument("log_max_bytes", type=int)
    parser.add_argument("stop_timeout_s", type=float)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    options.token = os.environ.pop(TOKEN_VARIABLE, "")
    owner = Owner()
    owner.listen()
    with contextlib.ExitStack() as stack:
        log: BinaryIO = sys.stdout.buffer
        if options.log != STANDARD_OUTPUT:
            log = stack.enter_context(Path(options.log).open("ab", buffering=0))
        status = _run(options, owner, log)
    if owner.has_ended():
        shutil.rmtree(options.workspace, ignore_errors=True)
    return 0 if owner.gone else status


def _run(options: argparse.Namespace, owner: "Owner", log: BinaryIO) -> int:
    """Run the command; return its exit status."""
    workspace = Path(options.workspace)
    server = subprocess.Popen(
        [word.replace(TOKEN_MARK, options.token) for word in options.command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
        pass_fds=options.lock,
        preexec_fn=functools.partial(_prepare, os.getpid()),
    )
    is_token_shown = bool(options.token)
    try:
        stubs = Stubs(server.pid, workspace)
        rotation = Rotation(Path(options.log), options.log_max_bytes)
        while server.poll() is None:
            if owner.wait(POLL_S):
                server.terminate()
                deadline = time.monotonic() + options.stop_timeout_s
                while server.poll() is None and time.monotonic() < deadline:
                    if owner.is_hurried:
                        break
                    time.sleep(POLL_S)
                return 0
            rotation.run(time.monotonic())
            if owner.found_hung:
                _note(log, "the server does not answer, and is ended")
                return HUNG
            if stub := stubs.dead():
                _note(log, f"the Python stub, process {stub}, died; the server cannot go on")
                return STUB_DIED
            if is_token_shown and stubs.known:  # it loads models, so it has read its options
                is_token_shown = False
                _hide_token(server.pid, options.token, log)
        return _status(server.returncode, log)
    finally:
        with contextlib.suppress(ProcessLookupError):  # also kills stubs that outlived the server
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        remove_traces(options.shared_memory, workspace)
        remove_abandoned_environments()


def _status(code: int, log: BinaryIO) -> int:
    """Return the exit status of the command, like a shell's if a signal ended it."""
    if code >= 0:
        return code
    names = {each.value: each.name for each in signal.Signals}
    name = names.get(-code, "a signal of no name")
    cause = ": the kernel sends it where memory runs out" if -code == signal.SIGKILL else ""
    _note(log, f"the server was ended by {name}, signal {-code}{cause}")
    return 128 - code


def _hide_token(process: int, token: str, log: BinaryIO) -> None:
    """Overwrite the token in the command line of a child process, which all users may read.

    The process id of a child cannot be reused before the child is waited for.
    """
    secret = token.encode()
    try:
        state = (PROCESSES / str(process) / "stat").read_text(errors="replace")
        fields = state.rpartition(")")[2].split()
        first, last = int(fields[FIRST_ARGUMENT]), int(fields[LAST_ARGUMENT])
        with (PROCESSES / str(process) / "mem").open("r+b", buffering=0) as memory:
            memory.seek(first)
            line = memory.read(last - first)
            memory.seek(first)
            memory.write(line.replace(secret, b"*" * len(secret)))
    except OSError as error:
        _note(
            log,
            f"the memory of the server cannot be written ({error}). So the token of the "
            "administrative routes is in its command line, which every user of the machine may "
            "read. Allow ptrace, or let nobody else onto it.",
        )


def _note(log: BinaryIO, message: str) -> None:
    with contextlib.suppress(OSError):  # a full disk or a closed pipe must not end the server
        os.write(log.fileno(), f"bertender: {message}\n".encode())


class Rotation:
    """Copies and empties a log that has grown too long, which its writer keeps open to append."""

    RETRY_S = 60.0

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
        except OSError:  # a full disk must not end the server, nor make it copy all the time
            self.next_try_s = now_s + self.RETRY_S
            return False
        return True


class Owner:
    """The process that started this one, watched through standard input."""

    gone = False
    """Whether the command must end: the owner has, or a signal says so."""
    is_hurried = False
    """Whether to end the command without waiting for it."""
    found_hung = False
    """Whether the command does not answer the owner."""

    def listen(self) -> None:
        """Treat signals to stop like the end of the owner, so that the command always ends too."""
        for number in STOPPING:
            signal.signal(number, lambda *_: self._stop(hurried=False))
        signal.signal(HURRYING, lambda *_: self._stop(hurried=True))
        signal.signal(KILLING, lambda *_: setattr(self, "found_hung", True))

    def _stop(self, *, hurried: bool) -> None:
        self.gone, self.is_hurried = True, hurried or self.is_hurried

    def wait(self, timeout_s: float) -> bool:
        """Wait until the command must end or the time is over; return whether it must end."""
        deadline = time.monotonic() + timeout_s
        while not self.gone and (left := deadline - time.monotonic()) > 0:
            # Python resumes the wait after a signal
            self.gone = self.has_ended(min(left, POLL_S)) or self.gone
        return self.gone

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until the owner closes its end or the time is over; return whether it has closed."""
        is_readable = select.select([sys.stdin], [], [], timeout_s)[0]
        return bool(is_readable) and not os.read(sys.stdin.fileno(), 4096)


class Stubs:
    """The Python stubs that a command has started, polled from time to time.

    Stubs of candidates, which `bertender deploy` tries, may die: no client waits for them.
    """

    DISCOVERY_S = 1.0
    GRACE_S = 1.5
    """Seconds after which a dead stub counts. Triton notices within a second if a stub dies while
    its model loads."""
    GRACE_UNSEEN_S = 5.0
    """The same for a stub that was never seen alive, most likely of a model that did not load."""
    UNNAMED = "?"
    """Model of a stub with other arguments than Triton's."""

    def __init__(self, command: int, workspace: Path) -> None:
        self.command = command
        self.workspace = workspace
        self.known: dict[int, str] = {}
        """Name of a stub's model by process id; empty for a stub that was never seen alive."""
        self.dead_since: dict[int, float] = {}
        self.next_discovery = 0.0

    def dead(self) -> int | None:
        """Return a stub that died a while ago and was not reaped by the command."""
        now = time.monotonic()
        if now >= self.next_discovery or not self.known:
            numbers = [int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit()]
            own = [number for number in numbers if self._is_own(_process(number))]
            self.known = {number: self.known.get(number) or self._model(number) for number in own}
            self.next_discovery = now + self.DISCOVERY_S
        looked_up = {number: _process(number) for number in self.known}
        dead = [each for each, its in looked_up.items() if self._is_own(its) and its.state == "Z"]
        self.dead_since = {each: self.dead_since.get(each, now) for each in dead}
        for number, since in self.dead_since.items():
            is_late = now - since > (self.GRACE_S if self.known[number] else self.GRACE_UNSEEN_S)
            # a candidate is known by its command line, or by its own mark
            is_marked = (self.workspace / f"{CANDIDATE_PREFIX}{number}").exists()
            if is_late and not is_marked and not self.known[number].endswith(CANDIDATE_SUFFIX):
                return number
        return None

    def _is_own(self, process: "_Process") -> bool:
        is_named = STUB_NAME.startswith(process.name) or process.name == SHELL
        return process.parent == self.command and is_named

    def _model(self, number: int) -> str:
        """Return the name of the model of a stub; empty for a dead process."""
        try:
            words = (PROCESSES / str(number) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return ""
        # MODEL/VERSION/model.py is the first argument
        if not words[0] or Path(os.fsdecode(words[0])).name == SHELL:  # about to become a stub
            return ""
        parts = Path(os.fsdecode(words[1])).parts if len(words) > 1 else ()
        return parts[-3] if len(parts) > 2 else self.UNNAMED


class _Process(NamedTuple):
    """The used fields of /proc/PID/stat."""

    name: str
    state: str
    parent: int


def _process(number: int) -> _Process:
    """Return the kernel's record of a process; None if it is gone."""
    try:
        content = (PROCESSES / str(number) / "stat").read_text(errors="replace")
    except OSError:
        return _Process("", "", 0)
    before, _, after = content.rpartition(")")
    fields = after.split()
    return _Process(before.partition("(")[2], fields[STATE], int(fields[PARENT]))


PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
STACK_BYTES = 256 * 1024 * 1024
"""Stack size of each thread, used as needed: Triton parses nested JSON by recursion, and with the
usual 8 MB, 100 kB of brackets crash it."""


def _prepare(supervisor: int) -> None:
    """Set up the process that will become the command."""
    for number in (*STOPPING, HURRYING, KILLING):
        signal.signal(number, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    keep_files_private()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:  # the parent died before this was set up
        os.kill(os.getpid(), signal.SIGTERM)


SECCOMP_MODE_FILTER = 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of the kernel's classic BPF
NUMBER, ARCHITECTURE = 0, 4  # offsets in `struct seccomp_data`
ALLOW, SUCCEED = 0x7FFF0000, 0x00050000  # the second is SECCOMP_RET_ERRNO with no error
FCHMOD = {"x86_64": (0xC000003E, 91), "aarch64": (0xC00000B7, 52)}
"""The kernel's architecture (AUDIT_ARCH) and the number of the system call, by machine."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def keep_files_private() -> None:
    """Keep files and shared memory of the command and its children private to their user.

    Triton's Python backend creates its regions with boost, which sets mode 0644 by `fchmod` after
    `open`, so that all users may read the texts of requests. A umask alone does not help, and a
    later `chmod` comes too late for those who have opened the region. So a seccomp filter makes
    `fchmod` succeed without effect, and the umask holds. If the kernel accepts no filter, only the
    umask is set; the backend closes its region later.
    """
    os.umask(0o077)
    if platform.machine() not in FCHMOD:
        return
    architecture, number = FCHMOD[platform.machine()]
    instructions = (
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 0, 3, architecture),
        (LOAD, 0, 0, NUMBER),
        (JUMP_EQUAL, 0, 1, number),
        (RETURN, 0, 0, SUCCEED),
        (RETURN, 0, 0, ALLOW),
    )
    code = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    program = _Program(len(instructions), code)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0)


def remove_traces(shared_memory: str, workspace: Path) -> None:
    """Remove the shared memory with this name prefix, and the marks of stubs."""
    notes = workspace.glob(f"{CANDIDATE_PREFIX}*")
    for left in (*SHARED_MEMORY.glob(f"{shared_memory}*"), *notes):
        left.unlink(missing_ok=True)


ENVIRONMENTS = Path("/tmp")  # noqa: S108 - Triton's own choice, nothing is made here
ENVIRONMENT = "python_env_??????"
"""Name of the folder that Triton's Python backend creates at each start, and removes at the end. It
stays empty here, since no model has its own environment."""
ENVIRONMENT_MODE = 0o700
"""Mode of a folder of mkdtemp, which the backend uses."""
LEAST_AGE_S = 60.0
"""Least age of a folder to remove: a newer one may be about to be filled."""
BACKEND_LIBRARY = b"/libtriton_python.so"
CLOCK_S = 2.0
"""Least age difference at which a folder is older than a process, since clocks are read one after
another."""


def remove_abandoned_environments(
    folder: Path = ENVIRONMENTS, processes: Path = PROCESSES, least_age_s: float = LEAST_AGE_S
) -> None:
    """Remove empty folders that Triton created for processes that have ended.

    A folder does not name its process. It may belong to any process of the same user that runs the
    Python backend and is not younger than the folder; if there is none, its process has ended.
    """
    own = [*_environments(folder, time.time() - least_age_s)]
    starts = [*_starts_of_backends(processes)] if own else []
    for each, made in own:
        if all(start > made + CLOCK_S for start in starts):
            with contextlib.suppress(OSError):  # the folder is not empty, or gone
                each.rmdir()


def _environments(folder: Path, made_before: float) -> Iterator[tuple[Path, float]]:
    """Yield folders of this user that may be Triton's, and their times of creation."""
    for each in folder.glob(ENVIRONMENT):
        with contextlib.suppress(OSError):  # the folder is gone
            state = each.lstat()
            is_like_one = stat.S_ISDIR(state.st_mode) and state.st_mode & 0o777 == ENVIRONMENT_MODE
            if is_like_one and state.st_uid == os.geteuid() and state.st_ctime <= made_before:
                yield each, state.st_ctime


def _starts_of_backends(processes: Path) -> Iterator[float]:
    """Yield the start times of this user's processes that may run the Python backend, in seconds of
    the clock of files."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for process in processes.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            if process.stat().st_uid != os.geteuid():
                continue
            try:
                if BACKEND_LIBRARY not in (process / "maps").read_bytes():
                    continue
            except PermissionError:  # a process that hides its command line may run the backend
                pass
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield booted + int(fields[START_TIME]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
