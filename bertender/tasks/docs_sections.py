"""The task `docs`: which section of a docstring does this sentence stand in?"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bertender.core.errors import DataError
from bertender.core.machine import environment
from bertender.tasks.docs import HELD_OUT_SHARE, Library, cached_rows, draw
from bertender.tasks.sections import SECTIONS
from bertender.tasks.sentences import Sentence, read_sentences, unlike
from bertender.tasks.task import Split
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

READER_VERSION = 1
"""Raise it when `sentences` reads other text than before: the cache is keyed by it."""

TRAIN_A_CLASS = 700
DEV_A_CLASS = 170
MOST_A_FILE = 10
"""Sentences of a section that one file may give, so that no long file stands for its library."""

DOCUMENTED: Mapping[str, Library] = {
    "datasets": Library("datasets", "datasets"),
    "huggingface-hub": Library("huggingface_hub", "huggingface-hub"),
    "networkx": Library("networkx", "networkx"),
    "numpy": Library("numpy", "numpy"),
    "onnxruntime": Library("onnxruntime", "onnxruntime"),
    "pandas": Library("pandas", "pandas"),
    "scikit-learn": Library("sklearn", "scikit-learn"),
    "scipy": Library("scipy", "scipy"),
    "sympy": Library("sympy", "sympy"),
    "torch": Library("torch", "torch"),
    "tritonclient": Library("tritonclient", "tritonclient"),
}
"""Packages whose docstrings have sections; all are bertender's own or come with them."""


def load_docs() -> tuple[Split, Split]:
    """Return the training and the held-out split: 700 and 170 sentences of each section."""
    return section_splits(docs_sentences())


def load_further() -> tuple[Example, ...]:
    """Return the sentences of training files that balancing leaves out, to use without labels."""
    return further_sentences(docs_sentences())


def docs_sentences() -> list[Sentence]:
    """Return the sentences of the installed packages, from the cache after the first call.

    Raises:
        DataError: one of the packages is not installed.
    """
    return cached_rows("docs-sections", Sentence, DOCUMENTED, READER_VERSION, _read)


def section_splits(
    sentences: Iterable[Sentence],
    train_a_class: int = TRAIN_A_CLASS,
    dev_a_class: int = DEV_A_CLASS,
) -> tuple[Split, Split]:
    """Choose as many sentences of each section for training and for holding out.

    The choice follows from hashes of names and texts: it is the same everywhere, and a new version
    of one library leaves most of it as it was. Where the scarcest section has fewer sentences than
    asked for, all sections get that many.

    Raises:
        DataError: a section has no sentence on one of the sides.
    """
    sides = _sides(sentences)
    return _balanced(sides[False], train_a_class), _balanced(sides[True], dev_a_class)


def further_sentences(
    sentences: Iterable[Sentence], train_a_class: int = TRAIN_A_CLASS
) -> tuple[Example, ...]:
    """Return what `section_splits` leaves of the training files, the sections in turns."""
    chosen = _by_section(_sides(sentences)[False])
    count = _count_a_class(chosen, train_a_class)
    turns = itertools.zip_longest(*(rows[count:] for rows in chosen.values()))
    return tuple((row.text,) for turn in turns for row in turn if row is not None)


def _sides(sentences: Iterable[Sentence]) -> Mapping[bool, list[Sentence]]:
    """Return the sentences of the files that are held out, and of the others."""
    sides: dict[bool, list[Sentence]] = {False: [], True: []}
    for sentence in unlike(sentences):
        sides[draw(sentence.library, sentence.file) < HELD_OUT_SHARE].append(sentence)
    return sides


def _balanced(sentences: Iterable[Sentence], asked: int) -> Split:
    chosen = _by_section(sentences)
    count = _count_a_class(chosen, asked)
    rows = sorted((row for section in SECTIONS for row in chosen[section][:count]), key=_lot)
    return Split(
        tuple((row.text,) for row in rows), tuple(SECTIONS.index(row.section) for row in rows)
    )


def _count_a_class(chosen: Mapping[str, Sequence[Sentence]], asked: int) -> int:
    """Return how many sentences each section gives: as many as asked for, or as the scarcest has.

    Raises:
        DataError: the scarcest has none.
    """
    scarcest = min(SECTIONS, key=lambda section: len(chosen[section]))
    count = min(asked, len(chosen[scarcest]))
    if count == 0:
        raise DataError(f"no documentation of {scarcest!r} was found, or too few files of it.")
    if count < asked:
        logger.warning("only %d sentences of %s: every class gets so many", count, scarcest)
    return count


def _by_section(sentences: Iterable[Sentence]) -> Mapping[str, list[Sentence]]:
    """Return the sentences of each section, those of its libraries in turns.

    A section's many sentences of one library would otherwise teach that library's style.
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


def _read(roots: Mapping[str, Path], advance: Callable[[int], None]) -> list[Sentence]:
    return read_sentences(roots, environment().cores, advance)
