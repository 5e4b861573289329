"""The folder of a running server, and what servers that were killed have left.

A workspace has a file that its owner, its server and the server's processes hold locked; the kernel
lets go of it when the last of them has ended, in whatever way. So a workspace whose file can be
locked has been left behind, wherever the number of its process is used again.

Triton's Python backend also writes to /tmp, wherever TMPDIR leads.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from bertender.core.errors import ServingError
from serve.supervisor.ending import remove_abandoned_environments, remove_traces

logger = logging.getLogger(__name__)

WORKSPACE_PREFIX = "bertender-serve-"
LOCK_NAME = "lock"
"""Holds the name with which the workspace's regions of shared memory begin."""
SHARED_MEMORY_NAME = re.compile(rf"{WORKSPACE_PREFIX}[0-9a-f-]{{36}}")

TEMPORARY = Path("/tmp")  # noqa: S108 - Triton's own choice, nothing is made here
ROOM_BYTES = 2**20
"""Least free space of a workspace, for the server's log and its notes."""


class Workspace:
    """A context manager: the folder is there inside the block, and removed after it.

    Args:
        path: where; by default a new folder among the temporary files.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.shared_memory = f"{WORKSPACE_PREFIX}{uuid4()}"
        """How the names of the server's regions begin."""
        self.path = path or Path(tempfile.gettempdir(), self.shared_memory)
        self.lock: int | None = None
        """A file descriptor for those who use the folder."""

    def __enter__(self) -> Self:
        self.create()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def create(self) -> None:
        """Make the folder if it is not there, once what is left of others has been removed."""
        if self.lock is not None:
            return
        sweep()
        self.path.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):  # a full disk, or one without locks: it is never swept
            self.lock = _locked(self.path, self.shared_memory)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)
        self.lock = None


def sweep() -> None:
    """Remove what servers of this user have left that were killed together with their supervisor:
    workspaces among the temporary files, their shared memory, and Triton's folders in /tmp."""
    for lock in Path(tempfile.gettempdir()).glob(f"{WORKSPACE_PREFIX}*/{LOCK_NAME}"):
        with suppress(OSError):  # of another user, in use, or just removed
            _sweep(lock)
    remove_abandoned_environments()


def _sweep(lock: Path) -> None:
    # of links themselves: one of another user may lead to a file of this one
    if {each.lstat().st_uid for each in (lock, lock.parent)} != {os.geteuid()}:
        return
    if not stat.S_ISDIR(lock.parent.lstat().st_mode):
        return
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name = os.read(descriptor, 100).decode(errors="replace")
        if not SHARED_MEMORY_NAME.fullmatch(name):  # somebody else's folder of such a name
            return
        remove_traces(name, lock.parent)
        shutil.rmtree(lock.parent, ignore_errors=True)
        logger.info("removed what a server that was killed had left: %s", lock.parent)
    finally:
        os.close(descriptor)


def _locked(folder: Path, content: str) -> int:
    """Make the lock of a workspace; it has its name only once it is held."""
    draft = folder / f".{LOCK_NAME}"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, content.encode())
        draft.rename(folder / LOCK_NAME)
    except BaseException:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
        raise
    return descriptor


def check_temporary_folder(folder: Path = TEMPORARY) -> None:
    """Check that Triton can write to it, as it may not where the root is read-only.

    Raises:
        ServingError: it cannot.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ServingError(
            f"{folder} cannot be written, and Triton's Python backend needs a folder there, "
            "wherever TMPDIR leads. Mount a volume there (docker run --tmpfs /tmp)."
        )


def check_room(folder: Path) -> None:
    """Check that a server's own folder has room for its log and its notes.

    Raises:
        ServingError: it has not.
    """
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < ROOM_BYTES:  # a total of 0 is that of a disk without a limit
        raise ServingError(
            f"{folder} has room for {disk.free / 2**10:.0f} KiB, and the server's log and notes "
            f"take {ROOM_BYTES / 2**10:.0f} KiB. Make room, or choose another directory with "
            "TMPDIR."
        )
