"""Rows of sentences that are split into words, with tags of any scheme read as BIO.

CoNLL          a word and its tag a line, in columns; an empty line ends a sentence
NAME.seq.in    a sentence a line, and in NAME.seq.out next to it the tags of each; NAME.label, where
               it is there, has one label of each sentence
JSONL, Parquet a list of words and a list of tags a row

Words and tags are split at tabs and spaces alone: a no-break space, and in a file with tabs a
space, is a character of a word. A file has one scheme of tags, a row of `tag_schemes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bertender.core.errors import DataError
from bertender.problems.reading import CellError
from bertender.problems.tag_schemes import UnusableTagError, scheme_of
from bertender.tasks.conll import TAGS, WORDS, read_conll, split_at_blanks
from bertender.tasks.labelled import cell_error
from bertender.tasks.rows import (
    NOT_UTF8,
    OnBadRow,
    Row,
    Table,
    decoded_bytes,
    not_utf8,
    read_jsonl,
    read_parquet,
    split_lines,
    stop,
)

LABEL = "label"
"""The column of one label a sentence, next to WORDS and TAGS."""


def open_words(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file of sentences by its suffix, a row of WORD_READERS; others are CoNLL's format.

    The last of the columns that are asked for has the tags, which become BIO.
    """
    table = WORD_READERS.get(path.suffix.lower(), read_conll)(path, bad)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        """Yield rows with BIO tags; what is no list of tags is left for its check."""
        column = columns[-1]
        rows = [*table.read(columns)]
        tagged = [_tags(row.values.get(column)) for row in rows]
        scheme = scheme_of(tags for tags in tagged if tags is not None)
        scheme.note(path)
        for row, tags in zip(rows, tagged, strict=True):
            try:
                own = row.values if tags is None else {**row.values, column: [*scheme.to_bio(tags)]}
            except UnusableTagError as error:
                place = f"line {row.lines[error.word]}" if row.lines else row.place
                bad(cell_error(path, place, CellError(column, str(error))))
            else:
                yield Row(row.place, own)

    return replace(table, read=rows)


def read_two_files(path: Path, bad: OnBadRow = stop) -> Table:
    """Open NAME.seq.in: a sentence a line, whose tags are in the same line of NAME.seq.out, and
    whose label, where it has one, is in that of NAME.label.

    Raises:
        DataError: one of the files is missing, or they have different numbers of lines.
    """
    label = path.with_suffix("").with_suffix(".label")
    beside = {TAGS: path.with_suffix(".out"), **({LABEL: label} if label.is_file() else {})}
    columns = {WORDS: split_lines(decoded_bytes(path))}
    for name, file in beside.items():
        columns[name] = split_lines(decoded_bytes(file))
        if len(columns[name]) != len(columns[WORDS]):
            raise DataError(
                f"{file}: {len(columns[name])} lines of {name} for the {len(columns[WORDS])} "
                f"sentences of {path}. Each line is of one sentence."
            )

    def rows(asked: Sequence[str]) -> Iterator[Row]:
        for number, lines in enumerate(zip(*columns.values(), strict=True), start=1):
            place = f"line {number}"
            if match := NOT_UTF8.search("\n".join(lines)):
                bad(not_utf8(path, place, match))
                continue
            named = zip(columns, lines, strict=True)
            yield Row(
                place,
                {name: line if name == LABEL else split_at_blanks(line) for name, line in named},
            )

    return Table(path, tuple(columns), rows, bad)


WORDS_ALONE: Mapping[str, Callable[[Path, OnBadRow], Table]] = {
    ".in": read_two_files,
    ".conll": read_conll,
    ".conllu": read_conll,
    ".iob": read_conll,
    ".bio": read_conll,
}
WORD_READERS = {".jsonl": read_jsonl, ".parquet": read_parquet, **WORDS_ALONE}
WORD_SUFFIXES = frozenset(WORDS_ALONE)
"""Of files for this problem type alone."""


def _tags(cell: object) -> list[str] | None:
    if isinstance(cell, (list, tuple)) and all(isinstance(tag, str) for tag in cell):
        return [tag.strip() for tag in cell]
    return None
