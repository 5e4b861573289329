"""The folder /tmp, which Triton's Python backend writes to wherever TMPDIR leads."""

from __future__ import annotations

import os
from pathlib import Path

from bertender.core.errors import ServingError

__all__ = ["check_temporary_folder"]

TEMPORARY = Path("/tmp")  # noqa: S108 - Triton's own choice, nothing is made here


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
