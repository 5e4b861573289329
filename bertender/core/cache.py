"""Where bertender keeps what it can compute again: `$BERTENDER_CACHE`, or `~/.cache/bertender`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_directory", "written_atomically"]


def cache_directory(name: str) -> Path:
    """Return the cache's folder of that name, made if it is not there."""
    root = Path(os.environ.get("BERTENDER_CACHE") or Path.home() / ".cache" / "bertender")
    directory = root / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary path that becomes `path` when the block ends, and vanishes if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix
    )
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
