"""Texts of a file that has no labels to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertender.core.card import LeftOutRows
from bertender.core.errors import ConfigError
from bertender.text.example import Example
from serve.bulk.config import ClassifyConfig

__all__ = ["Texts", "read_file"]


@dataclass(frozen=True)
class Texts:
    """Texts to classify, and the names of their columns."""

    columns: tuple[str, ...]
    texts: tuple[Example, ...]
    left_out: LeftOutRows | None = None


def read_file(path: Path, config: ClassifyConfig, text_columns: int) -> Texts:
    """Read the texts of a file.

    Args:
        path: CSV, TSV, JSONL or Parquet, or a text a line.
        config: names of columns, and whether bad rows are left out.
        text_columns: how many texts the model reads at once.

    Raises:
        ConfigError: the settings name fewer columns than the model reads, or more.
        DataError: the file is wrong.
    """
    # here, because they load pyarrow, which a few texts of a command line do not need
    from bertender.tasks.bad_rows import SkippedRows, stop
    from bertender.tasks.texts import read_texts

    pair = () if config.pair_column is None else (config.pair_column,)
    columns = (config.text_column, *pair)
    if len(columns) != text_columns:
        raise ConfigError(
            f"the model reads {text_columns} texts at once, and the columns are "
            f"{', '.join(columns)}. --pair-column names that of the second text."
        )
    skipped = SkippedRows()
    texts = read_texts(path, columns, skipped if config.skip_bad_rows else stop)
    return Texts(columns, texts, skipped.report())
