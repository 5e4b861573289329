"""Rows of data files in four formats, with the place of each, so that errors can point at it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow
import pyarrow.parquet

from bertender.core.errors import DataError, nearest_hint

__all__ = [
    "READERS",
    "Row",
    "Table",
    "open_table",
    "read_delimited",
    "read_jsonl",
    "read_parquet",
    "text_of",
]


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

    def require(self, columns: Sequence[str]) -> None:
        """Raise DataError for the first of `columns` that the file does not have exactly once."""
        if not self.columns:
            raise DataError(f"{self.path}: the file is empty.")
        for column in columns:
            if column not in self.columns:
                raise DataError(
                    f"{self.path}: no column {column!r}.{nearest_hint(column, self.columns)} "
                    f"Columns: {', '.join(map(repr, self.columns))}."
                )
            if self.columns.count(column) > 1:
                raise DataError(f"{self.path}: two columns are named {column!r}; rename one.")


def open_table(path: Path) -> Table:
    """Open a data file by its suffix, a row of READERS.

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
    return reader(path)


def read_delimited(
    path: Path, *, delimiter: str, quoted: bool = True, columns: Sequence[str] = ()
) -> Table:
    """Open a UTF-8 file of delimited fields; a quoted field may span lines.

    Args:
        path: the file; a byte-order mark is skipped.
        delimiter: what stands between fields.
        quoted: whether double quotes enclose a field, or are plain characters.
        columns: their names, for a file without a header.
    """
    lines = io.StringIO(text_of(path), newline="")
    rows = _fields(path, lines, delimiter, quoted)
    names = tuple(columns) or next(rows, (0, ()))[1]
    return Table(path, tuple(names), _named(path, tuple(names), rows))


def read_jsonl(path: Path) -> Table:
    """Open a file with one JSON object a line; the first tells the columns."""
    rows = list(_objects(path, text_of(path)))
    columns = tuple(rows[0].values) if rows else ()
    return Table(path, columns, iter(rows))


def read_parquet(path: Path) -> Table:
    """Open a Parquet file; its rows have no lines and are counted from 1."""
    _bytes_of(path, size=1)
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from None
    return Table(path, tuple(file.schema_arrow.names), _records(path, file))


READERS: Mapping[str, Callable[[Path], Table]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}


def _bytes_of(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file, or all of them."""
    try:
        with path.open("rb") as file:
            content = file.read(size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    if not content:
        raise DataError(f"{path}: the file is empty.")
    return content


def text_of(path: Path) -> str:
    """Return a UTF-8 file's text; DataError names the line of a byte that is none."""
    content = _bytes_of(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        wrong = error.object[error.start]
        raise DataError(
            f"{path}, line {line}: byte 0x{wrong:02x} is not UTF-8. Save the file as UTF-8."
        ) from None


def _fields(
    path: Path, lines: io.StringIO, delimiter: str, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield each record's first line and its fields; empty lines are passed over."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {line}: {error}. A field that starts with a double quote ends with "
                "one, and quotes within it are doubled."
            ) from None
        if fields:
            yield line, fields


def _named(
    path: Path, columns: tuple[str, ...], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[Row]:
    for line, fields in rows:
        if len(fields) != len(columns):
            raise DataError(
                f"{path}, line {line}: {len(fields)} fields where there are {len(columns)} columns "
                f"({', '.join(columns)}). Quote fields that hold the delimiter."
            )
        yield Row(f"line {line}", dict(zip(columns, fields, strict=True)))


def _objects(path: Path, text: str) -> Iterator[Row]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {line}: not JSON: {error}.") from None
        if not isinstance(values, dict):
            raise DataError(
                f"{path}, line {line}: {content.strip()[:40]!r} is no JSON object. "
                'Each line holds one, such as {"text": "...", "label": "..."}.'
            )
        yield Row(f"line {line}", values)


def _records(path: Path, file: pyarrow.parquet.ParquetFile) -> Iterator[Row]:
    row = 0
    try:
        for batch in file.iter_batches():
            for record in range(batch.num_rows):
                row += 1
                values = {name: batch[name][record].as_py() for name in batch.schema.names}
                yield Row(f"row {row}", values)
    except UnicodeDecodeError:
        raise DataError(f"{path}, row {row}: text that is not UTF-8. Write it as UTF-8.") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {row}: damaged: {error}") from None
