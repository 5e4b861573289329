"""Folders of temporary files: the server's own, and /tmp, to which Triton's Python backend writes
wherever TMPDIR leads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bertender.core.errors import ServingError

__all__ = ["check_room", "check_temporary_folder"]

TEMPORARY = Path("/tmp")  # noqa: S108 - Triton's own choice, nothing is made here
ROOM_BYTES = 2**20
"""Least free space of a server's workspace, for its log and its notes."""


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
