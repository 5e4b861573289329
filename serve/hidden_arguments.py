"""Become a command some of whose arguments are secret, and not to be read in its command line.

    NAME=secret python -I -S hidden_arguments.py COMMAND... @NAME ...

Every user of a machine may read /proc/PID/cmdline; only its owner may read /proc/PID/environ.
Triton takes the token of its closed routes as an argument, and in no other way. So this process
forks a tracer and replaces itself with the command, whose argument is still the word `@NAME`.
Before the first instruction of the new program, the tracer makes that entry of `argv` point to the
value in the program's environment, and ends. The program sees the secret, its command line shows
`@NAME` from its first moment to its last, and it has the process id that was started.

Where a process may not be traced (a container without ptrace, Yama's scope 2 or 3), the value
becomes an ordinary argument, and a line on standard error reports it.

It is a file of its own, run with nothing but the standard library: the supervisor starts it.
"""

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MARK = "@"
VISIBLE = (
    "bertender: {error}. So the token of the administrative routes is in this process's command "
    "line, which every user of the machine may read. Allow ptrace, or let nobody else onto it.\n"
)

PTRACE_CONT, PTRACE_DETACH, PTRACE_SEIZE = 7, 17, 0x4206
PTRACE_O_TRACEEXEC, PTRACE_O_EXITKILL = 0x10, 0x100000
PTRACE_EVENT_EXEC, EVENTS = 4, 1 << 8
PR_SET_PTRACER, ANY_PROCESS = 0x59616D61, -1
WALL = 0x40000000
WORD_BYTES = struct.calcsize("P")
START_STACK, ENV_START, ENV_END = 25, 47, 48  # of /proc/PID/stat, from the field after the name

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


def main(command: list[str]) -> None:
    """Replace this process with the command."""
    if any(map(_is_hidden, command)) and (error := _start_tracer(os.getpid())):
        sys.stderr.write(VISIBLE.format(error=error))
        sys.stderr.flush()
        command = [os.environ[word[1:]] if _is_hidden(word) else word for word in command]
    os.execv(command[0], command)  # noqa: S606 - a shell would see the secret


def _is_hidden(word: str) -> bool:
    return word.startswith(MARK) and word[1:] in os.environ


def _start_tracer(process: int) -> str:
    """Fork the tracer of this process; return why there is none, or nothing."""
    _allow_tracing_by(ANY_PROCESS)  # Yama's scope 1 lets no process trace its parent
    result, tell = os.pipe()
    if (child := os.fork()) == 0:
        if os.fork() == 0:  # not the command's own child, which it would have to wait for
            _trace(process, tell)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(tell)
    with os.fdopen(result, "rb") as report:
        error = report.read().decode()
    _allow_tracing_by(0)  # again: it would outlast the exec
    return error


def _allow_tracing_by(process: int) -> None:
    LIBC.prctl(PR_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)


def _trace(process: int, tell: int) -> None:
    """Point the arguments of the program that `process` becomes to their values."""
    try:
        _memory(process).close()
        _ptrace(PTRACE_SEIZE, process, PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)
    except OSError as error:
        os.write(tell, f"this process may not be traced ({error})".encode())
        os._exit(1)
    os.close(tell)  # the other may now become the command
    try:
        while (stop := _next_stop(process)) != signal.SIGTRAP | PTRACE_EVENT_EXEC << 8:
            _ptrace(PTRACE_CONT, process, stop if stop < EVENTS else 0)  # it gets its signals
        _point_to_values(process)
        _ptrace(PTRACE_DETACH, process, 0)
    finally:  # without the detaching, this ends the command too: it must not run with open routes
        os._exit(0)


def _next_stop(process: int) -> int:
    _, status = os.waitpid(process, WALL)
    if not os.WIFSTOPPED(status):
        raise ProcessLookupError(f"{process} ended before it became the command")
    return status >> 8


def _point_to_values(process: int) -> None:
    fields = _stat(process)
    stack, first, last = (int(fields[place]) for place in (START_STACK, ENV_START, ENV_END))
    with _memory(process) as memory:
        values = dict(_values(_read(memory, first, last - first), first))
        for entry, word in _arguments(memory, stack, last):
            if value := values.get(word):
                memory.seek(entry)
                memory.write(struct.pack("P", value))


def _arguments(memory: BinaryIO, stack: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield where each entry of `argv` is, and the word that it points to."""
    (count,) = struct.unpack("P", _read(memory, stack, WORD_BYTES))
    for entry in range(stack + WORD_BYTES, stack + WORD_BYTES * (count + 1), WORD_BYTES):
        (pointer,) = struct.unpack("P", _read(memory, entry, WORD_BYTES))
        size = min(end - pointer, os.sysconf("SC_ARG_MAX"))
        yield entry, _read(memory, pointer, size).partition(b"\0")[0]


def _values(environment: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield each variable as the word that stands for it, and where its value begins."""
    for entry in environment.split(b"\0"):
        name, _, _ = entry.partition(b"=")
        yield MARK.encode() + name, start + len(name) + 1
        start += len(entry) + 1


def _read(memory: BinaryIO, address: int, size: int) -> bytes:
    memory.seek(address)
    return memory.read(size)


def _memory(process: int) -> BinaryIO:
    return Path(f"/proc/{process}/mem").open("r+b", buffering=0)


def _stat(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold spaces itself."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _ptrace(request: int, process: int, data: int) -> None:
    if LIBC.ptrace(request, process, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
