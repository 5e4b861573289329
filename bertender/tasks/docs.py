"""The task `docs-library`: which library does this documentation come from? And its text at large.

Its text is on every machine that bertender is installed on: the docstrings of the standard library
and of five packages. Passages that libraries share are dropped, the classes are balanced, and a
source file is either on the training side or on the held-out side, never on both.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from bertender.core.environment import environment
from bertender.core.errors import DataError
from bertender.tasks.documentation import cached_rows, draw
from bertender.tasks.libraries import LIBRARIES
from bertender.tasks.passages import Passage, distinct, read_passages
from bertender.tasks.task import Split

__all__ = [
    "balanced_splits",
    "corpus",
    "docs_corpus",
    "docs_passages",
    "is_held_out",
    "load_docs_library",
]

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
