"""Rows read once from the documentation of installed libraries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow

from bertender.core.progress import progress_bar
from bertender.tasks.cache import cached_table
from bertender.tasks.libraries import Library
from bertender.tasks.passages import python_files

__all__ = ["cached_rows", "draw"]

Row = TypeVar("Row", bound=tuple[Any, ...])
Read = Callable[[Mapping[str, Path], Callable[[int], None]], list[Row]]
"""(root of each library, receiver of the number of files done) -> rows"""


def cached_rows(
    name: str,
    row: type[Row],
    libraries: Mapping[str, Library],
    reader_version: int,
    read: Read[Row],
) -> list[Row]:
    """Return the rows of installed libraries, from the cache after the first call.

    Args:
        name: how the cached table's name begins.
        row: the named tuple of a row.
        libraries: what to read, by the name that stands in its rows.
        reader_version: with the libraries' versions, the key of the cache.
        read: reads the rows where they are not cached.

    Raises:
        DataError: one of the libraries is not installed.
    """
    roots = {name: library.root() for name, library in libraries.items()}
    versions = {name: library.version() for name, library in libraries.items()}
    fields: tuple[str, ...] = row._fields  # type: ignore[attr-defined]

    def table() -> pyarrow.Table:
        columns = map(list, zip(*_read_with_progress(roots, read), strict=True))
        made = pyarrow.table(dict(zip(fields, columns, strict=True)))
        return made.replace_schema_metadata({"versions": json.dumps(versions)})

    key = hashlib.sha256(json.dumps([reader_version, versions]).encode()).hexdigest()[:16]
    cached = cached_table(f"{name}-{key}", table)
    columns = (cached[field].to_pylist() for field in fields)
    return [row(*values) for values in zip(*columns, strict=True)]


def _read_with_progress(roots: Mapping[str, Path], read: Read[Row]) -> list[Row]:
    total = sum(len(python_files(root)) for root in roots.values())
    with progress_bar("reading docstrings", total) as bar:
        return read(roots, bar.advance)


def draw(*words: str) -> float:
    """Return a number from 0 to 1 that depends on the words alone."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
