"""Rows of data files in four formats, with the place of each, so that errors can point at it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

import pyarrow
import pyarrow.parquet

from bertender.core.errors import DataError, RowError, nearest_hint
from bertender.tasks.bad_rows import OnBadRow, stop
from bertender.tasks.utf8 import LINE_END, NOT_UTF8, bytes_of, decoded_bytes, not_utf8

__all__ = [
    "READERS",
    "Row",
    "Table",
    "open_table",
    "read_delimited",
    "read_jsonl",
    "read_parquet",
]


LONGEST_NAME = 40
"""Characters of a column's name in a message; a longer one is hardly a name."""


class _CsvReader(Protocol):
    """The readers of the module `csv`, which does not name their type."""

    @property
    def line_num(self) -> int: ...

    def __next__(self) -> list[str]: ...


@dataclass(frozen=True)
class Row:
    """Values by column, and where they stand: "line 7" as an editor counts, or "row 7"."""

    place: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class Table:
    """An open data file: its columns, and its rows, read as they are asked for."""

    path: Path
    columns: tuple[str, ...]
    rows: Iterator[Row]
    bad: OnBadRow = stop
    """Called with each row that cannot be used."""

    def require(self, columns: Sequence[str]) -> None:
        """Raise DataError for the first of `columns` that the file does not have exactly once."""
        if not self.columns:
            raise DataError(f"{self.path}: the file is empty, or no row of it can be read.")
        for column in columns:
            if column not in self.columns:
                raise DataError(
                    f"{self.path}: no column {column!r}.{nearest_hint(column, self.columns)} "
                    f"{_columns_shown(self.columns)}"
                )
            if self.columns.count(column) > 1:
                raise DataError(f"{self.path}: two columns are named {column!r}; rename one.")


def _columns_shown(columns: Sequence[str]) -> str:
    """Return the columns of a file, and what to do where they look like a row of data."""
    cut = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in columns]
    shown = f"Columns: {', '.join(map(repr, cut))}."
    if cut == [*columns]:
        return shown
    return f"{shown} If that is a row of data, add a line with the names of the columns before it."


def open_table(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a data file by its suffix, a row of READERS.

    Args:
        path: the file.
        bad: called with each row that cannot be used.

    Raises:
        DataError: unknown suffix, or the file is missing, empty, or not of its format. What is
            wrong further down is raised when its row is reached.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: unknown suffix {path.suffix!r}. Allowed: {', '.join(READERS)}. "
            "Rename the file, or save it in one of these formats."
        )
    return reader(path, bad)


def read_delimited(
    path: Path,
    bad: OnBadRow = stop,
    *,
    delimiter: str,
    quoted: bool = True,
    columns: Sequence[str] = (),
) -> Table:
    """Open a UTF-8 file of delimited fields; a quoted field may span lines.

    Args:
        path: the file; a byte-order mark is skipped.
        bad: called with each row that cannot be used; a header that cannot be is an error.
        delimiter: what stands between fields.
        quoted: whether double quotes enclose a field, or are plain characters.
        columns: their names, for a file without a header.
    """
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    lines = io.StringIO(decoded_bytes(path), newline="")
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    names = tuple(columns) or tuple(next(_fields(path, reader, stop), ("", ()))[1])
    return Table(path, names, _with_columns(path, names, _fields(path, reader, bad), bad), bad)


def read_jsonl(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file with one JSON object a line; its columns are those of any of them."""
    rows = list(_objects(path, decoded_bytes(path), bad))
    columns = tuple(dict.fromkeys(chain.from_iterable(row.values for row in rows)))
    return Table(path, columns, iter(rows), bad)


def read_parquet(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a Parquet file; its rows have no lines and are counted from 1."""
    bytes_of(path, size=1)
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from None
    return Table(path, tuple(file.schema_arrow.names), _records(path, file, bad), bad)


READERS: Mapping[str, Callable[[Path, OnBadRow], Table]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}


def _fields(path: Path, reader: _CsvReader, bad: OnBadRow) -> Iterator[tuple[str, list[str]]]:
    """Yield each record's place and its fields; empty lines are passed over.

    Raises:
        RowError: a malformed record runs over several lines, so that its end is not known.
    """
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            wrong = _malformed(path, line, error)
            (bad if reader.line_num == line else stop)(wrong)
            continue
        if match := NOT_UTF8.search("\n".join(fields)):
            bad(not_utf8(path, f"line {line}", match))
        elif fields:
            yield f"line {line}", fields


def _malformed(path: Path, line: int, error: csv.Error) -> RowError:
    return RowError(
        path,
        f"line {line}",
        f"{error}. A field that starts with a double quote ends with one, and quotes within it "
        "are doubled.",
    )


def _with_columns(
    path: Path,
    columns: tuple[str, ...],
    rows: Iterator[tuple[str, list[str]]],
    bad: OnBadRow,
) -> Iterator[Row]:
    for place, fields in rows:
        if len(fields) == len(columns):
            yield Row(place, dict(zip(columns, fields, strict=True)))
        else:
            reason = (
                f"{len(fields)} fields where there are {len(columns)} columns "
                f"({', '.join(columns)}). Quote fields that hold the delimiter."
            )
            bad(RowError(path, place, reason))


def _objects(path: Path, text: str, bad: OnBadRow) -> Iterator[Row]:
    for line, content in enumerate(text.split(LINE_END), start=1):
        if content.strip():
            try:
                yield Row(f"line {line}", _object(path, f"line {line}", content))
            except RowError as error:
                bad(error)


def _object(path: Path, place: str, content: str) -> dict[str, object]:
    """Return the JSON object of a line, or raise RowError."""
    if match := NOT_UTF8.search(content):
        raise not_utf8(path, place, match)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RowError(path, place, f"not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise RowError(
            path,
            place,
            f"{content.strip()[:40]!r} is not a JSON object. "
            'Each line holds one, such as {"text": "...", "label": "..."}.',
        )
    return values


def _records(path: Path, file: pyarrow.parquet.ParquetFile, bad: OnBadRow) -> Iterator[Row]:
    row = 0
    try:
        for batch in file.iter_batches():
            for record in range(batch.num_rows):
                row += 1
                try:
                    yield Row(f"row {row}", _record(batch, record))
                except UnicodeDecodeError:
                    reason = "text that is not UTF-8. Write it as UTF-8."
                    bad(RowError(path, f"row {row}", reason))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {row}: damaged: {error}") from None


def _record(batch: pyarrow.RecordBatch, record: int) -> dict[str, object]:
    return {name: batch[name][record].as_py() for name in batch.schema.names}
