"""The documentation of installed libraries: where it is, and rows read from it once."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pyarrow

from bertender.core.errors import DataError
from bertender.core.progress import progress_bar
from bertender.tasks.cache import cached_table
from bertender.tasks.passages import python_files

__all__ = ["Library", "StandardLibrary", "cached_rows", "draw"]

Row = TypeVar("Row", bound=tuple[Any, ...])
Read = Callable[[Mapping[str, Path], Callable[[int], None]], list[Row]]
"""(root of each library, receiver of the number of files done) -> rows"""


@dataclass(frozen=True)
class Library:
    """Where a class of the task has its text: a package to import, and who distributes it."""

    package: str
    distribution: str

    def root(self) -> Path:
        spec = importlib.util.find_spec(self.package)  # of a top-level name: imports nothing
        if spec is None or not spec.submodule_search_locations:
            raise DataError(
                f"this task reads the documentation of {self.distribution}, which is not "
                "installed. Install bertender with its dependencies again."
            )
        return Path(next(iter(spec.submodule_search_locations)))

    def version(self) -> str:
        return metadata.version(self.distribution)


class StandardLibrary(Library):
    """The interpreter's own modules."""

    def root(self) -> Path:
        return Path(sysconfig.get_path("stdlib"))

    def version(self) -> str:
        return platform.python_version()


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
        total = sum(len(python_files(root)) for root in roots.values())
        with progress_bar("reading docstrings", total) as bar:
            columns = map(list, zip(*read(roots, bar.advance), strict=True))
        made = pyarrow.table(dict(zip(fields, columns, strict=True)))
        return made.replace_schema_metadata({"versions": json.dumps(versions)})

    key = hashlib.sha256(json.dumps([reader_version, versions]).encode()).hexdigest()[:16]
    cached = cached_table(f"{name}-{key}", table)
    columns = (cached[field].to_pylist() for field in fields)
    return [row(*values) for values in zip(*columns, strict=True)]


def draw(*words: str) -> float:
    """Return a number from 0 to 1 that depends on the words alone."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
