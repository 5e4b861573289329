"""Texts without labels, from a table or a file with a text a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertender.core.errors import DataError, RowError
from bertender.problems import CellError
from bertender.problems.cells import text_of_cell
from bertender.tasks.bad_rows import OnBadRow, stop
from bertender.tasks.labelled import cell_error
from bertender.tasks.rows import Row, open_table
from bertender.tasks.utf8 import lines_of
from bertender.text.example import Example

__all__ = ["read_texts"]

LINES = (".txt", ".txt.xz")
"""The ends of the names of files with a text a line."""


def read_texts(
    path: Path, text_columns: Sequence[str], bad: OnBadRow = stop
) -> tuple[Example, ...]:
    """Read texts without labels: a table with the text columns, or LINES with a text a line.

    Args:
        path: the file.
        text_columns: one, or two for pairs.
        bad: called with each row that cannot be used.

    Raises:
        DataError: the file is wrong, or it has a text a line and the examples are pairs.
    """
    if path.name.lower().endswith(LINES):
        return _lines(path, text_columns, bad)
    table = open_table(path, bad)
    table.require(text_columns)
    examples = []
    for row in table.rows:
        try:
            examples.append(_example(path, row, text_columns))
        except RowError as error:
            bad(error)
    return _some(path, tuple(examples))


def _lines(path: Path, text_columns: Sequence[str], bad: OnBadRow) -> tuple[Example, ...]:
    if len(text_columns) > 1:
        raise DataError(
            f"{path}: a line holds one text, and the examples have {', '.join(text_columns)}. "
            "Give a table with these columns: CSV, TSV, JSONL or Parquet."
        )
    lines = (line.strip() for line in lines_of(path, bad))
    return _some(path, tuple((line,) for line in lines if line))


def _some(path: Path, examples: tuple[Example, ...]) -> tuple[Example, ...]:
    if not examples:
        raise DataError(f"{path}: it holds no text.")
    return examples


def _example(path: Path, row: Row, columns: Sequence[str]) -> Example:
    try:
        return tuple(text_of_cell(row.values, column) for column in columns)
    except CellError as error:
        raise cell_error(path, row, error) from None
