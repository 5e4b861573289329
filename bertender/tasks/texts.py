"""Texts without labels, from a table or a file with a text a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertender.core.errors import DataError, RowError
from bertender.problems import CellError
from bertender.problems.cells import text_of_cell
from bertender.tasks.bad_rows import OnBadRow, stop
from bertender.tasks.labelled import cell_error
from bertender.tasks.rows import Row, open_table
from bertender.tasks.utf8 import lines_of
from bertender.text.example import Example, is_blank

__all__ = ["PlacedTexts", "read_placed_texts", "read_texts"]

LINES = (".txt", ".txt.xz")
"""The ends of the names of files with a text a line."""


@dataclass(frozen=True)
class PlacedTexts:
    """Texts of a file, and where each stands, blank rows and those left out counted."""

    examples: tuple[Example, ...]
    places: tuple[str, ...]
    columns: tuple[str, ...]
    """Their columns; none where the file has a text a line."""
    blank: tuple[str, ...] = ()
    """Places of the lines without a text, which are left out where the file has a text a line."""


def read_texts(
    path: Path, text_columns: Sequence[str], bad: OnBadRow = stop
) -> tuple[Example, ...]:
    """Read texts without labels; arguments and errors as in `read_placed_texts`."""
    return read_placed_texts(path, text_columns, bad).examples


def read_placed_texts(path: Path, text_columns: Sequence[str], bad: OnBadRow = stop) -> PlacedTexts:
    """Read texts without labels: a table with the text columns, or LINES with a text a line.

    Args:
        path: the file.
        text_columns: one, or two for pairs.
        bad: called with each row that cannot be used.

    Raises:
        DataError: the file is wrong, or it has a text a line and the examples are pairs.
    """
    has_lines = path.name.lower().endswith(LINES)
    rows = [*(_lines if has_lines else _rows)(path, text_columns, bad)]
    texts = [row for row in rows if not is_blank(row[1][0])]
    if not texts:
        raise DataError(f"{path}: it holds no text.")
    places, examples = zip(*texts, strict=True)
    blank = tuple(place for place, (first, *_) in rows if is_blank(first))
    return PlacedTexts(examples, places, () if has_lines else tuple(text_columns), blank)


def _rows(path: Path, text_columns: Sequence[str], bad: OnBadRow) -> Iterator[tuple[str, Example]]:
    table = open_table(path, bad)
    for row in table.rows(text_columns):
        try:
            yield row.place, _example(path, row, text_columns)
        except RowError as error:
            bad(error)


def _lines(path: Path, text_columns: Sequence[str], bad: OnBadRow) -> Iterator[tuple[str, Example]]:
    if len(text_columns) > 1:
        raise DataError(
            f"{path}: a line holds one text, and the examples have {', '.join(text_columns)}. "
            "Give a table with these columns: CSV, TSV, JSONL or Parquet."
        )
    return ((place, (line.strip(),)) for place, line in lines_of(path, bad))


def _example(path: Path, row: Row, columns: Sequence[str]) -> Example:
    try:
        return tuple(text_of_cell(row.values, column) for column in columns)
    except CellError as error:
        raise cell_error(path, row, error) from None
