"""Texts that have no labels to read, and where each stands."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertender.core.card import LeftOutRows
from bertender.core.errors import BertenderError, ConfigError, RowError
from bertender.text.example import Example
from serve.wire import row_in

__all__ = ["Texts", "read_file"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Texts:
    """Texts to classify, the names of their columns, and their places."""

    columns: tuple[str, ...]
    """Of the output."""
    texts: tuple[Example, ...]
    source: Path
    """A file, or words for where else they come from."""
    places: tuple[str, ...]
    """One for each of the texts: "line 7"."""
    has_columns: bool = False
    """Whether the source has these columns."""
    skips_bad_rows: bool = False
    left_out: LeftOutRows | None = None
    """Rows that were left out when they were read."""

    def error_of(self, error: BertenderError, rows: Sequence[int]) -> tuple[int, RowError] | None:
        """Return the row that an error is about, and an error that has its place.

        Args:
            error: of a request.
            rows: the rows of that request.

        Returns:
            None for an error that is not about one row.
        """
        refusal = row_in(str(error))
        if refusal is None or refusal.row >= len(rows):
            return None
        row, place = rows[refusal.row], self.places[rows[refusal.row]]
        if self.has_columns and refusal.column is not None:
            place = f"{place}, column {self.columns[refusal.column]!r}"
        return row, RowError(self.source, place, refusal.reason)


def read_file(
    path: Path,
    text_column: str,
    pair_column: str | None,
    text_columns: int,
    skip_bad_rows: bool = False,
) -> Texts:
    """Read the texts of a file.

    Args:
        path: CSV, TSV, JSONL or Parquet, or a text a line.
        text_column: the column of the text.
        pair_column: that of the second text, for a model that reads pairs.
        text_columns: how many texts the model reads at once.
        skip_bad_rows: leave out rows that cannot be used.

    Raises:
        ConfigError: fewer columns than the model reads, or more.
        DataError: the file is wrong.
    """
    # here, because they load pyarrow, which a few texts of a command line do not need
    from bertender.tasks.bad_rows import SkippedRows, stop
    from bertender.tasks.texts import read_placed_texts

    columns = (text_column, *(() if pair_column is None else (pair_column,)))
    if len(columns) != text_columns:
        raise ConfigError(
            f"the model reads {text_columns} texts at once, and the columns are "
            f"{', '.join(columns)}. --pair-column names that of the second text."
        )
    skipped = SkippedRows()
    read = read_placed_texts(path, columns, skipped if skip_bad_rows else stop)
    if read.blank:
        logger.warning(
            "%s: %d lines without a text have no prediction, the first is %s",
            path,
            len(read.blank),
            read.blank[0],
        )
    return Texts(
        columns,
        read.examples,
        source=path,
        places=read.places,
        has_columns=bool(read.columns),
        skips_bad_rows=skip_bad_rows,
        left_out=skipped.report(),
    )
