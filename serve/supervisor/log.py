"""The log of a command: a file that is limited in size, or standard output."""

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

ROTATION_RETRY_S = 60.0
STANDARD_OUTPUT = "-"


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


def opened(log: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if log == STANDARD_OUTPUT:
        return contextlib.nullcontext(sys.stdout.buffer)
    return Path(log).open("ab", buffering=0)


def note(log: BinaryIO, message: str) -> None:
    with contextlib.suppress(OSError):  # a full disk, or nobody reads it: ends no server
        os.write(log.fileno(), f"bertender: {message}\n".encode())
