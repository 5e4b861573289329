"""Where the cache folder is; what only reads it needs no more than the standard library."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CACHE_VARIABLE", "cache_directory"]

CACHE_VARIABLE = "BERTENDER_CACHE"


def cache_directory() -> Path:
    """Return the cache folder, $BERTENDER_CACHE or ~/.cache/bertender; it need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "bertender"
