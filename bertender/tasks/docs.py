"""Text of the documentation of installed libraries."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import platform
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertender.core.artifact import sha256_of
from bertender.core.build_once import cached
from bertender.core.errors import DataError
from bertender.core.files import cache_directory
from bertender.core.machine import environment
from bertender.core.progress import progress_bar
from bertender.tasks.passages import Passage, distinct, python_files, read_passages
from bertender.tasks.task import Split

if TYPE_CHECKING:  # 60 MB, which a list of tasks does without
    import pyarrow

# --- from bertender.tasks.cache
# Tables that are made once and cached in the cache folder.


def cached_table(name: str, make: Callable[[], pyarrow.Table]) -> pyarrow.Table:
    """Return the table cached under `name`; make and cache it first where missing or damaged."""

    from pyarrow import parquet

    def save(table: pyarrow.Table, path: object) -> None:
        parquet.write_table(table, path, compression="zstd")

    path = cache_directory() / f"{name}.parquet"
    return cached(path, make, save, parquet.read_table, sha256_of)


# --- from bertender.tasks.libraries
# LIBRARIES: the installed libraries whose documentation the task `docs-library` reads.


@dataclass(frozen=True)
class Library:
    """Source of a class's text: a package to import, and its distribution."""

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


STANDARD_LIBRARY = "stdlib"

LIBRARIES: Mapping[str, Library] = {
    "numpy": Library("numpy", "numpy"),
    "scikit-learn": Library("sklearn", "scikit-learn"),
    "scipy": Library("scipy", "scipy"),
    STANDARD_LIBRARY: StandardLibrary("", "Python"),
    "torch": Library("torch", "torch"),
    "transformers": Library("transformers", "transformers"),
}

# --- from bertender.tasks.documentation
# Rows read once from the documentation of installed libraries.

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
        import pyarrow

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


# --- from bertender.tasks.docs
# The task `docs-library`: which library does this documentation come from? And its text at large.
#
# Its text is on every machine that bertender is installed on: the docstrings of the standard
# library
# and of five packages. Passages that libraries share are dropped, the classes are balanced, and a
# source file is either on the training side or on the held-out side, never on both.

logger = logging.getLogger(__name__)

READER_VERSION = 1
"""Raise it when `passages` reads other text than before: the cache is keyed by it."""

TRAIN_A_CLASS = 600
DEV_A_CLASS = 150
HELD_OUT_SHARE = 0.2
MOST_A_FILE = 20
"""Passages that one file may give to a split, so that no long file stands for its library."""


def load_docs_library() -> tuple[Split, Split]:
    """Return the training and the held-out split: 600 and 150 passages of each library."""
    return balanced_splits(docs_passages(), tuple(LIBRARIES))


def docs_corpus() -> Iterator[str]:
    """Yield the text of all docstrings on the training side, for pre-training: about 2M words."""
    return corpus(docs_passages())


def docs_passages() -> list[Passage]:
    """Return all distinct passages of the installed libraries, from the cache after the first call.

    Raises:
        DataError: one of the libraries is not installed.
    """
    return cached_rows("docs", Passage, LIBRARIES, READER_VERSION, _read)


def balanced_splits(
    passages: Iterable[Passage],
    labels: tuple[str, ...],
    train_a_class: int = TRAIN_A_CLASS,
    dev_a_class: int = DEV_A_CLASS,
) -> tuple[Split, Split]:
    """Choose as many passages of each label for training and for holding out.

    The choice follows from hashes of names and texts: it is the same everywhere, and a new version
    of one library leaves most of it as it was. Where the scarcest class has fewer passages than
    asked for, all classes get that many.

    Raises:
        DataError: a label has no passage on one of the sides.
    """
    sides: dict[bool, defaultdict[str, list[Passage]]] = {
        False: defaultdict(list),
        True: defaultdict(list),
    }
    for passage in sorted(passages, key=_lot):
        sides[is_held_out(passage)][passage.library].append(passage)
    return (
        _balanced(sides[False], labels, train_a_class),
        _balanced(sides[True], labels, dev_a_class),
    )


def corpus(passages: Iterable[Passage]) -> Iterator[str]:
    """Yield the docstrings of the training side, each as one text, joined from its passages.

    An empty text stands after the docstrings of each file.
    """
    training = (passage for passage in passages if not is_held_out(passage))
    for _, of_file in groupby(training, key=lambda passage: passage[:2]):
        for _, group in groupby(of_file, key=lambda passage: passage[:3]):
            yield " ".join(passage.text for passage in group)
        yield ""


def is_held_out(passage: Passage) -> bool:
    """Return the side of a passage, which is the side of its file."""
    return draw(passage.library, passage.file) < HELD_OUT_SHARE


def _balanced(by_label: Mapping[str, list[Passage]], labels: tuple[str, ...], asked: int) -> Split:
    chosen = {label: _at_most_a_file(by_label.get(label, [])) for label in labels}
    scarcest = min(labels, key=lambda label: len(chosen[label]))
    count = min(asked, len(chosen[scarcest]))
    if count == 0:
        raise DataError(f"no documentation of {scarcest!r} was found, or too few files of it.")
    if count < asked:
        logger.warning("only %d passages of %s: every class gets so many", count, scarcest)
    rows = sorted(
        (
            (passage, label_id)
            for label_id, label in enumerate(labels)
            for passage in chosen[label][:count]
        ),
        key=lambda row: _lot(row[0]),
    )
    return Split(
        tuple((passage.text,) for passage, _ in rows), tuple(label_id for _, label_id in rows)
    )


def _at_most_a_file(passages: Iterable[Passage]) -> list[Passage]:
    taken: Counter[str] = Counter()
    remaining = []
    for passage in passages:
        taken[passage.file] += 1
        if taken[passage.file] <= MOST_A_FILE:
            remaining.append(passage)
    return remaining


def _lot(passage: Passage) -> float:
    return draw(passage.library, passage.text)


def _read(roots: Mapping[str, Path], advance: Callable[[int], None]) -> list[Passage]:
    return distinct(read_passages(roots, environment().cores, advance))
