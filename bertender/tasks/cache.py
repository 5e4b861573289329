"""Tables that are made once and cached in the cache folder."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow
import pyarrow.parquet

from bertender.core.artifact import sha256_of
from bertender.core.cache import cached
from bertender.core.cache_folder import cache_directory

__all__ = ["cached_table"]


def cached_table(name: str, make: Callable[[], pyarrow.Table]) -> pyarrow.Table:
    """Return the table cached under `name`; make and cache it first where missing or damaged."""

    def save(table: pyarrow.Table, path: object) -> None:
        pyarrow.parquet.write_table(table, path, compression="zstd")

    path = cache_directory() / f"{name}.parquet"
    return cached(path, make, save, pyarrow.parquet.read_table, sha256_of)
