"""Runs a command as on a CPU without AMX, whose kernels are those for AVX-512 VNNI.

    python -m benchmarks.without_amx COMMAND [ARGUMENT ...]

ONNX Runtime and oneDNN (PyTorch, OpenVINO) ask the kernel once for AMX's registers. Here a seccomp
filter refuses that to the command and to all that it starts; what they record says so
(`denied_flags`). Linux on x86_64 only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

from bertender.core.cpu import ARCH_PRCTL, REQUEST_PERMISSION
from bertender.core.errors import ConfigError

__all__ = ["deny_amx"]

SET_SECCOMP, FILTER_MODE, SET_NO_NEW_PRIVILEGES = 22, 2, 38
"""Of prctl."""
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
"""Instructions of a filter: of a word of the call, by it, and of the result."""
CALL_NUMBER, FIRST_ARGUMENT = 0, 16
"""Places in what a filter reads of a call, in bytes."""
DENY, ALLOW = 0x00050000 | errno.EPERM, 0x7FFF0000


def _filter() -> bytes:
    """Return the filter that refuses the request for more registers, and allows all else."""
    instructions = (
        (LOAD, 0, 0, CALL_NUMBER),
        (JUMP_IF_EQUAL, 0, 3, ARCH_PRCTL),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (JUMP_IF_EQUAL, 0, 1, REQUEST_PERMISSION),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    )
    return b"".join(struct.pack("HBBI", *each) for each in instructions)


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def deny_amx() -> None:
    """Deny AMX to this process, and to all that it starts.

    Raises:
        ConfigError: not on Linux on x86_64, or this kernel takes no filters.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ConfigError(f"AMX is denied on Linux on x86_64 only, not on {platform.platform()}.")
    code, library = _filter(), ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // struct.calcsize("HBBI"), code)
    refused = library.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.prctl(
        SET_SECCOMP, FILTER_MODE, ctypes.byref(program), 0, 0
    )
    if refused:
        reason = os.strerror(ctypes.get_errno())
        raise ConfigError(f"this kernel takes no seccomp filter ({reason}): run it elsewhere.")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.without_amx COMMAND [ARGUMENT ...]")
    try:
        deny_amx()
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (what the caller gave)
    except (ConfigError, OSError) as error:
        sys.exit(f"{sys.argv[1]} does not run: {error}")
