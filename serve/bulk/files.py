"""Files of predictions: WRITERS by suffix. A row holds the texts, label, score and logits."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertender.core.atomic import replacing
from bertender.core.errors import ConfigError
from bertender.text.example import Example
from serve.client.served_model import Classification

__all__ = ["COLUMNS", "WRITERS", "check_writable", "write_predictions"]

COLUMNS = tuple(Classification.model_fields)

Rows = Sequence[Mapping[str, Any]]


def _write_delimited(path: Path, rows: Rows, *, delimiter: str) -> None:
    """Write a table with a header; a cell of several values, or of a truth value, is JSON."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow([_cell(value) for value in row.values()])


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | bool) else value


def _write_jsonl(path: Path, rows: Rows) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow.parquet  # here, so that a few texts of a command line are sent without it

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS: Mapping[str, Callable[[Path, Rows], None]] = {
    ".csv": partial(_write_delimited, delimiter=","),
    ".tsv": partial(_write_delimited, delimiter="\t"),
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def check_writable(output: Path, text_columns: Sequence[str]) -> None:
    """Raise ConfigError for a file of predictions that could not be written."""
    if output.suffix.lower() not in WRITERS:
        raise ConfigError(
            f"--output {output}: unknown suffix {output.suffix!r}. Allowed: {', '.join(WRITERS)}."
        )
    if taken := [name for name in text_columns if name in COLUMNS]:
        raise ConfigError(
            f"the column {taken[0]!r} holds texts, and that of predictions has the same name. "
            "Rename it in the file."
        )


def write_predictions(
    output: Path,
    text_columns: Sequence[str],
    texts: Sequence[Example],
    predictions: Sequence[Classification],
) -> None:
    """Write a row for each example, in their order; the file appears whole or not at all."""
    rows = [
        {**dict(zip(text_columns, text, strict=True)), **prediction.model_dump(mode="json")}
        for text, prediction in zip(texts, predictions, strict=True)
    ]
    with replacing(output) as draft:
        WRITERS[output.suffix.lower()](draft, rows)
