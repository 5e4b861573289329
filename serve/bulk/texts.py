"""Texts of a file that has no labels to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertender.core.card import LeftOutRows
from bertender.core.errors import ConfigError
from bertender.text.example import Example

__all__ = ["Texts", "read_file"]


@dataclass(frozen=True)
class Texts:
    """Texts to classify, and the names of their columns."""

    columns: tuple[str, ...]
    texts: tuple[Example, ...]
    left_out: LeftOutRows | None = None


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
    from bertender.tasks.texts import read_texts

    columns = (text_column, *(() if pair_column is None else (pair_column,)))
    if len(columns) != text_columns:
        raise ConfigError(
            f"the model reads {text_columns} texts at once, and the columns are "
            f"{', '.join(columns)}. --pair-column names that of the second text."
        )
    skipped = SkippedRows()
    texts = read_texts(path, columns, skipped if skip_bad_rows else stop)
    return Texts(columns, texts, skipped.report())
