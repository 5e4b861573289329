"""The task `docs`: which section of a docstring is this sentence from? And a corpus of docstrings.

The classes are summary, parameter, return value, exception and note. Names, types and headings are
left out, so that only language is left. The text is the documentation of packages that bertender
needs anyway, so every machine has it. The classes are balanced, libraries take turns within a
class, and a source file is in the training or the held-out split, never in both.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import logging
import platform
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertender.core.artifact import sha256_of
from bertender.core.build_once import cached
from bertender.core.errors import DataError
from bertender.core.files import cache_directory
from bertender.core.machine import environment, installed_version
from bertender.core.progress import progress_bar
from bertender.tasks.docstrings import (
    SECTIONS,
    Passage,
    Sentence,
    distinct,
    python_files,
    read_passages,
    read_sentences,
    unlike,
)
from bertender.tasks.task import Split
from bertender.text.batch import Example

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

Row = TypeVar("Row", bound=tuple[Any, ...])

TRAIN_A_CLASS = 700
DEV_A_CLASS = 170
HELD_OUT_SHARE = 0.2
MOST_A_FILE = 10
"""Most sentences of a section from one file, so that no long file dominates its library."""

DOCUMENTED = {
    "datasets": "datasets",
    "huggingface-hub": "huggingface_hub",
    "networkx": "networkx",
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "pandas": "pandas",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "sympy": "sympy",
    "torch": "torch",
    "tritonclient": "tritonclient",
}
"""Packages whose docstrings have sections, by distribution; bertender requires them all, directly
or not."""
STANDARD_LIBRARY = "stdlib"
CORPUS = {
    "numpy": "numpy",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    STANDARD_LIBRARY: "",
    "torch": "torch",
    "transformers": "transformers",
}
"""Packages whose docstrings form the pre-training corpus `docs`, by distribution."""


def load_docs() -> tuple[Split, Split]:
    """Return the training and the held-out split: 700 and 170 sentences per section."""
    return section_splits(docs_sentences())


def load_further() -> tuple[Example, ...]:
    """Return the training sentences left out by balancing, as unlabelled texts."""
    return further_sentences(docs_sentences())


def docs_corpus() -> Iterator[str]:
    """Yield all docstrings of the training split, for pre-training: about 2M words."""
    return corpus(docs_passages())


def docs_sentences() -> list[Sentence]:
    """Return the sentences of the installed packages, from the cache after the first call.

    Raises:
        DataError: a package is not installed.
    """
    return _cached_rows("docs-sections", Sentence, DOCUMENTED, read_sentences)


def docs_passages() -> list[Passage]:
    """Return all distinct passages of the installed packages; as `docs_sentences`."""

    def read(*arguments: Any) -> list[Passage]:
        return distinct(read_passages(*arguments))

    return _cached_rows("docs", Passage, CORPUS, read)


def corpus(passages: Iterable[Passage]) -> Iterator[str]:
    """Yield the docstrings of the training split, each as one text, joined from its passages.

    An empty text follows the docstrings of each file.
    """
    training = (passage for passage in passages if not is_held_out(passage))
    for _, of_file in itertools.groupby(training, key=lambda passage: passage[:2]):
        for _, group in itertools.groupby(of_file, key=lambda passage: passage[:3]):
            yield " ".join(passage.text for passage in group)
        yield ""


def is_held_out(row: Passage | Sentence) -> bool:
    """Return whether a passage or sentence is held out, like everything in its file."""
    return draw(row.library, row.file) < HELD_OUT_SHARE


def section_splits(
    sentences: Iterable[Sentence],
    train_a_class: int = TRAIN_A_CLASS,
    dev_a_class: int = DEV_A_CLASS,
) -> tuple[Split, Split]:
    """Choose equal numbers of sentences from each section for training and for holding out.

    The choice is by hashes of names and texts: the same sentences everywhere, and mostly the same
    after a library's update. If the scarcest section has fewer sentences than requested, all
    sections get that many.

    Raises:
        DataError: a section has no sentence in one of the splits.
    """
    rows = unlike(sentences)
    train, dev = (
        _balanced([row for row in rows if is_held_out(row) == held_out], asked)
        for held_out, asked in ((False, train_a_class), (True, dev_a_class))
    )
    return train, dev


def further_sentences(
    sentences: Iterable[Sentence], train_a_class: int = TRAIN_A_CLASS
) -> tuple[Example, ...]:
    """Return the training sentences that `section_splits` leaves out, sections in turns."""
    chosen = _by_section(row for row in unlike(sentences) if not is_held_out(row))
    count = _count_a_class(chosen, train_a_class)
    turns = itertools.zip_longest(*(rows[count:] for rows in chosen.values()))
    return tuple((row.text,) for turn in turns for row in turn if row is not None)


def draw(*words: str) -> float:
    """Return a number from 0 to 1 that depends only on the words."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def cached_table(name: str, make: Callable[[], pyarrow.Table]) -> pyarrow.Table:
    """Return the table cached under `name`, created if it is missing or damaged."""
    import pyarrow.parquet

    def save(table: pyarrow.Table, path: object) -> None:
        pyarrow.parquet.write_table(table, path, compression="zstd")

    path = cache_directory() / f"{name}.parquet"
    return cached(path, make, save, pyarrow.parquet.read_table, sha256_of)


def root_of(distribution: str, package: str) -> Path:
    """Return the folder of a package or of the standard library.

    Raises:
        DataError: the distribution is not installed.
    """
    if distribution == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(package)  # top-level names import nothing
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"this task reads the documentation of {distribution}, which is not installed. "
            "Install bertender with its dependencies again."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def version_of(distribution: str) -> str | None:
    """Return the version of a package, or of the interpreter for the standard library."""
    if distribution == STANDARD_LIBRARY:
        return platform.python_version()
    return installed_version(distribution)  # may be installed as onnxruntime-gpu


def _cached_rows(
    name: str,
    row: type[Row],
    packages: Mapping[str, str],
    read: Callable[[Mapping[str, Path], int, Callable[[int], None]], list[Row]],
) -> list[Row]:
    """Return rows from the documentation of packages, from the cache after the first call.

    Args:
        name: prefix of the cached table's name; the versions of the packages follow.
        row: named tuple of a row.
        packages: distribution -> package.
        read: (root of each distribution, processes, receiver of the number of files done) -> rows
    """
    import pyarrow

    roots = {name: root_of(name, package) for name, package in packages.items()}
    versions = {name: version_of(name) for name in ("bertender", *packages)}
    fields: tuple[str, ...] = row._fields  # type: ignore[attr-defined]

    def table() -> pyarrow.Table:
        total = sum(len(python_files(root)) for root in roots.values())
        with progress_bar("reading docstrings", total) as bar:
            columns = map(list, zip(*read(roots, environment().cores, bar.advance), strict=True))
        return pyarrow.table(dict(zip(fields, columns, strict=True)))

    key = hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
    cached_rows = cached_table(f"{name}-{key}", table)
    columns = (cached_rows[field].to_pylist() for field in fields)
    return [row(*values) for values in zip(*columns, strict=True)]


def _balanced(sentences: Iterable[Sentence], asked: int) -> Split:
    chosen = _by_section(sentences)
    count = _count_a_class(chosen, asked)
    rows = sorted((row for section in SECTIONS for row in chosen[section][:count]), key=_lot)
    return Split(
        tuple((row.text,) for row in rows), tuple(SECTIONS.index(row.section) for row in rows)
    )


def _count_a_class(chosen: Mapping[str, Sequence[Sentence]], asked: int) -> int:
    """Return the number of sentences per section: as requested, or that of the scarcest section.

    Raises:
        DataError: the scarcest section has none.
    """
    scarcest = min(SECTIONS, key=lambda section: len(chosen[section]))
    count = min(asked, len(chosen[scarcest]))
    if count == 0:
        raise DataError(f"no documentation of {scarcest!r} was found, or too few files of it.")
    if count < asked:
        logger.warning("only %d sentences of %s: every class gets that many", count, scarcest)
    return count


def _by_section(sentences: Iterable[Sentence]) -> Mapping[str, list[Sentence]]:
    """Return the sentences of each section, libraries in turns.

    Otherwise, many sentences of one library would teach its style.
    """
    of_file: Counter[tuple[str, str, str]] = Counter()
    of_library: Counter[tuple[str, str]] = Counter()
    ranked: defaultdict[str, list[tuple[int, Sentence]]] = defaultdict(list)
    for row in sorted(sentences, key=_lot):
        of_file[row.library, row.file, row.section] += 1
        if of_file[row.library, row.file, row.section] <= MOST_A_FILE:
            ranked[row.section].append((of_library[row.library, row.section], row))
            of_library[row.library, row.section] += 1
    return {
        section: [row for _, row in sorted(ranked[section], key=lambda pair: pair[0])]
        for section in SECTIONS
    }


def _lot(sentence: Sentence) -> float:
    return draw(sentence.library, sentence.text)
