"""Rows of sentences that are split into words: files with a word a line, or two files a split.

CoNLL          a word and its tag a line, white space between them; an empty line ends a sentence
NAME.seq.in    a sentence a line, and in NAME.seq.out next to it the tags of each
JSONL, Parquet a list of words and a list of tags a row
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from bertender.core.errors import DataError, RowError
from bertender.problems import TOKEN_CLASSIFICATION
from bertender.tasks.bad_rows import OnBadRow, stop
from bertender.tasks.rows import Row, Table, read_jsonl, read_parquet
from bertender.tasks.utf8 import text_of

__all__ = ["WORD_READERS", "WORD_SUFFIXES", "open_words", "read_conll", "read_two_files"]

DOCUMENT = "-DOCSTART-"
"""The word of a line that CoNLL's files have before each document."""
(WORDS,), TAGS = TOKEN_CLASSIFICATION.columns


def open_words(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file of sentences by its suffix, a row of WORD_READERS; others are CoNLL's format."""
    return WORD_READERS.get(path.suffix.lower(), read_conll)(path, bad)


def read_conll(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file with a word a line: the word first, its tag last, empty lines between sentences.

    Columns between the two, such as parts of speech, are not read.
    """
    return Table(path, (WORDS, TAGS), _sentences(path, bad), bad)


def read_two_files(path: Path, bad: OnBadRow = stop) -> Table:
    """Open NAME.seq.in: a sentence a line, whose tags are in the same line of NAME.seq.out.

    Raises:
        DataError: one of the files is missing, or they have different numbers of lines.
    """
    tags = path.with_suffix(".out")
    sentences, tagged = _lines(path), _lines(tags)
    if len(sentences) != len(tagged):
        raise DataError(
            f"{tags}: {len(tagged)} lines of tags for the {len(sentences)} sentences of {path}. "
            "Each line holds the tags of one sentence."
        )
    rows = (
        Row(f"line {line}", {WORDS: words, TAGS: own})
        for line, (words, own) in enumerate(zip(sentences, tagged, strict=True), start=1)
    )
    return Table(path, (WORDS, TAGS), rows, bad)


WORDS_ALONE: Mapping[str, Callable[[Path, OnBadRow], Table]] = {
    ".in": read_two_files,
    ".conll": read_conll,
    ".iob": read_conll,
    ".bio": read_conll,
}
WORD_READERS = {".jsonl": read_jsonl, ".parquet": read_parquet, **WORDS_ALONE}
WORD_SUFFIXES = frozenset(WORDS_ALONE)
"""Of files for this problem type alone."""


def _sentences(path: Path, bad: OnBadRow) -> Iterator[Row]:
    lines = enumerate(text_of(path).removesuffix("\n").split("\n"), start=1)
    for has_words, group in groupby(lines, key=lambda line: bool(line[1].strip())):
        if has_words:
            try:
                row = _sentence(path, [(number, line.split()) for number, line in group])
            except RowError as error:
                bad(error)
                continue
            if row is not None:
                yield row


def _sentence(path: Path, lines: list[tuple[int, list[str]]]) -> Row | None:
    """Return the sentence of some lines; None of the line before a document."""
    first = lines[0][0]
    cells = [(number, fields) for number, fields in lines if fields[0] != DOCUMENT]
    for number, fields in cells:
        if len(fields) < 2:
            reason = (
                f"{fields[0]!r} has no tag. A line holds a word, white space and its tag; an empty "
                "line ends a sentence."
            )
            raise RowError(path, f"line {number}", reason)
    if not cells:
        return None
    return Row(
        f"line {first}",
        {WORDS: [fields[0] for _, fields in cells], TAGS: [fields[-1] for _, fields in cells]},
    )


def _lines(path: Path) -> list[list[str]]:
    """Return the words of each line; the file may end with a line end or without."""
    return [line.split() for line in text_of(path).removesuffix("\n").split("\n")]
