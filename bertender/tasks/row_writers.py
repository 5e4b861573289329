"""Writers of rows, by the suffix of their file: predictions, in the formats that are read."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertender.core.errors import DataError

Rows = Sequence[Mapping[str, Any]]


def write_delimited(path: Path, rows: Rows, *, delimiter: str) -> None:
    """Write a table with a header; a cell of several values, or of a truth value, is JSON."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        for row in rows:
            cells = row.values()
            writer.writerow([json.dumps(x) if isinstance(x, list | bool) else x for x in cells])


def write_jsonl(path: Path, rows: Rows) -> None:
    """Write a JSON object a line; dates and decimals, which JSON has not, are text.

    Raises:
        DataError: a value has no form in JSON.
    """
    lines = (json.dumps(row, ensure_ascii=False, default=_as_text) + "\n" for row in rows)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def _as_text(value: object) -> str:
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    raise DataError(
        f"a column has a value of type {type(value).__name__}, which JSON has no form for. Give "
        "--format parquet, or leave the column out of the file."
    )


def write_parquet(path: Path, rows: Rows, types: Mapping[str, Any] | None = None) -> None:
    """Write a Parquet file.

    Args:
        path: the file.
        rows: those that lack a column have null there.
        types: Arrow types of columns, by name; those of other columns are found in the values.

    Raises:
        DataError: the values of a column have several types.
    """
    import pyarrow  # here, so that a few texts of a command line are sent without it
    import pyarrow.parquet

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            column = pyarrow.array(values, (types or {}).get(name))
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"column {name!r} has values of several types, and one of Parquet has one: "
                f"{error}. Give --format jsonl, or leave the column out of the file."
            ) from None
        # a part whose cells are all empty has the type of other parts, most often
        columns[name] = column.cast(pyarrow.string()) if column.type == pyarrow.null() else column
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


ROW_WRITERS: Mapping[str, Callable[[Path, Rows], None]] = {
    ".csv": partial(write_delimited, delimiter=","),
    ".tsv": partial(write_delimited, delimiter="\t"),
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}
"""Writers by suffix."""
