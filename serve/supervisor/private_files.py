"""Files of a command and all that it starts are for its user alone, shared memory among them.

Triton's Python backend makes its regions by boost, which gives them mode 0644 by `fchmod` after
`open`, so that every user may read the texts of all requests. A umask alone does not help, and a
`chmod` later leaves them open to who has opened them before. So `fchmod` does nothing there: a
filter of seccomp lets it succeed, and the umask holds.
"""

import ctypes
import os
import platform
import struct

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the kernel's classic BPF
NUMBER, ARCHITECTURE = 0, 4  # offsets in `struct seccomp_data`
ALLOW, SUCCEED = 0x7FFF0000, 0x00050000  # the second is SECCOMP_RET_ERRNO with no error

FCHMOD = {"x86_64": (0xC000003E, 91), "aarch64": (0xC00000B7, 52)}
"""Machine -> the kernel's name of its architecture (AUDIT_ARCH), and the number of the call."""

LIBC = ctypes.CDLL(None)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def keep_files_private() -> None:
    """Set up this process, between fork and exec.

    Where the kernel takes no filter, the umask alone is set; the backend closes its region later.
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
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    LIBC.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0)
