"""The folder of what can be made again, and files that are never half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CACHE_VARIABLE", "cache_directory", "replacing"]

CACHE_VARIABLE = "BERTENDER_CACHE"


def cache_directory() -> Path:
    """Return the cache folder, $BERTENDER_CACHE or ~/.cache/bertender; it need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "bertender"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that becomes `path` when the block ends well, and else goes away.

    A killed process leaves the old file or none at `path`, never half of one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
        draft.chmod(0o644)  # mkstemp makes it private
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
