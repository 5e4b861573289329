"""The folder of what can be made again: $BERTENDER_CACHE, or ~/.cache/bertender."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pyarrow.parquet

__all__ = ["CACHE_VARIABLE", "cache_directory", "cached_table", "replacing"]

CACHE_VARIABLE = "BERTENDER_CACHE"

logger = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Return the cache folder; it need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "bertender"


def cached_table(name: str, make: Callable[[], pyarrow.Table]) -> pyarrow.Table:
    """Return the table kept under `name`, made and kept first where it is missing or damaged.

    A folder that cannot be written is a warning: the table is then made again every time.
    """
    path = cache_directory() / f"{name}.parquet"
    try:
        return pyarrow.parquet.read_table(path)
    except FileNotFoundError:
        logger.info("%s is not in the cache yet", path)
    except (pyarrow.ArrowException, OSError) as error:
        logger.warning("%s is damaged and is made again: %s", path, error)
    table = make()
    try:
        with replacing(path) as draft:
            pyarrow.parquet.write_table(table, draft, compression="zstd")
    except OSError as error:
        logger.warning(
            "%s cannot be kept: %s. Set %s to another folder.", path, error, CACHE_VARIABLE
        )
    return table


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that becomes `path` when the block ends well, and else goes away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
