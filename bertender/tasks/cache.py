"""Tables that are made once and kept in the cache folder."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow
import pyarrow.parquet

from bertender.core.atomic import replacing
from bertender.core.cache import CACHE_VARIABLE, cache_directory

__all__ = ["cached_table"]

logger = logging.getLogger(__name__)


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
