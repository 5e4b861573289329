"""Files of texts, with labels or without: their text columns, and the examples in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertender.core.card import TaskRecord
from bertender.core.errors import DataError
from bertender.problems.problem import Problem
from bertender.problems.reading import Columns
from bertender.tasks.labelled import LINES, example_rows
from bertender.tasks.rows import OnBadRow, Row, Table, lines_of, open_table, stop
from bertender.tasks.task import Task
from bertender.tasks.word_rows import SENTENCES, TAGS, WORD_A_LINE, ConllFile, read_two_files
from bertender.text.batch import Example, is_blank

TEXT = "text"
"""The column of a file with one text per line."""


def has_lines(path: Path) -> bool:
    """Return whether a file has one text per line, and no columns."""
    return path.name.lower().endswith(LINES)


def has_words(path: Path) -> bool:
    """Return whether a file has one word per line."""
    return path.name.lower().endswith(WORD_A_LINE)


def open_source(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file of texts: a table, LINES with one text per line, WORD_A_LINE, or SENTENCES."""
    if has_words(path):
        return _open_words(path, bad)
    if path.suffix.lower() == SENTENCES:
        return read_two_files(path, bad, tagged=False)
    if not has_lines(path):
        return open_table(path, bad, others=(*LINES, *WORD_A_LINE, SENTENCES))

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        for place, line in lines_of(path, bad):
            yield Row(place, {TEXT: line.strip()})

    return Table(path, (TEXT,), rows, bad)


def _open_words(path: Path, bad: OnBadRow) -> Table:
    """Open a file with one word per line: a row has the words of a sentence, and the tags, if they
    are in another column."""
    conll = ConllFile.read(path)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        (own,), width = columns, conll.width
        is_tagged = width > 1 and conll.places[own] % width < width - 1
        yield from conll.rows(bad, (own, TAGS) if is_tagged else (own,))

    return Table(path, tuple(conll.places), rows, bad)


@dataclass(frozen=True)
class TextColumns:
    """The columns of a file with the texts of a model's examples.

    Args:
        problem: kind of problem of the model.
        record: record of its task, which names the columns used in training.
        text, more: columns that the user named.
    """

    problem: Problem[Any]
    record: TaskRecord
    text: str | None = None
    more: str | None = None

    def of(self, table: Table) -> tuple[str, ...]:
        """Return the columns of a file.

        Raises:
            ConfigError: the user named more columns than the model reads.
            DataError: the file lacks one, or has one text per line while the model reads several.
        """
        problem, (first, *others) = self.problem, self.record.text_columns
        there = table.columns
        if self.text is not None:
            first = self.text
        elif first not in there and problem.columns.texts[0] in there:
            first = problem.columns.texts[0]
        named = self.more
        if named is None and others and all(each in there for each in others):
            named = ",".join(others)
        elif named is None and others and not problem.takes_list and not problem.places_are_labels:
            named = others[0]
        lines = has_lines(table.path)
        if lines and self.text is None:
            first = TEXT
        if problem.gives_vectors:  # its pairs are of training alone
            named = self.more
        columns = (first, *problem.more_columns(named, there))
        if lines and len(columns) > 1:
            raise DataError(
                f"{table.path}: a line holds one text, and the model reads {', '.join(columns)}. "
                "Give a table with these columns: CSV, TSV, JSONL or Parquet."
            )
        if has_words(table.path) and not problem.labels_words:
            raise DataError(
                f"{table.path}: a line holds one word, and the model reads whole texts. Give them "
                "a line each in .txt, or in a table: CSV, TSV, JSONL or Parquet."
            )
        problem.check_columns(columns, self.record.text_count)
        table.require(columns)
        return columns

    def to_read(self, table: Table) -> tuple[str, ...]:
        """Return the columns of a file to read: all, since its rows are written too. The columns of
        a file of words have several names each, so only those that the model reads are named."""
        return self.of(table) if has_words(table.path) else table.columns


def read_examples(path: Path, columns: TextColumns, bad: OnBadRow = stop) -> tuple[Example, ...]:
    """Read the examples of a model from a file whose labels are not read.

    Args:
        path: the file.
        columns: its text columns.
        bad: called with each row that cannot be used.

    Raises:
        ConfigError, DataError: as from `TextColumns.of`; or no row has a text.
    """
    problem, table = columns.problem, open_source(path, bad)
    own = columns.of(table)
    if has_lines(path):
        filled = (row for row in table.rows(own) if not is_blank(str(row.values[TEXT])))
        table = replace(table, read=lambda names: filled)
    examples = tuple(
        problem.to_example(texts) for _, texts in example_rows(table, Columns(own, ""), problem)
    )
    if not examples:
        raise DataError(f"{path}: the file has no texts.")
    return examples


def read_unlabelled(path: Path, task: Task, bad: OnBadRow = stop) -> tuple[Example, ...]:
    """Read unlabelled training texts in the same way as a task's own texts; arguments and errors
    are those of `read_examples`."""
    return read_examples(path, TextColumns(task.problem, task.record()), bad)
