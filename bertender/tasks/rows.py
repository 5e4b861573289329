"""Rows of data files in five formats, with their places for error messages.

Only requested columns are read and checked. Bytes that are not UTF-8 invalidate one line, not the
file. A line ends at LF or CR LF, as counted by `wc`; `str.splitlines` also splits at U+2028, U+0085
and form feeds, which occur in texts.

Rows of predictions are written in the same formats except .json.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import logging
import lzma
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from bertender.core.card import LeftOutRow, LeftOutRows
from bertender.core.errors import DataError, RowError, nearest_hint

if TYPE_CHECKING:  # imports 60 MB that other formats do not need
    import pyarrow
    import pyarrow.parquet


logger = logging.getLogger(__name__)

OnBadRow = Callable[[RowError], None]
"""Called with each bad row; if it returns, the row is left out."""

LISTED_ROWS = 10
"""Most left-out rows to list; all are counted."""


def stop(error: RowError) -> None:
    """Raise the error, so that no row is left out."""
    raise error


@dataclass
class SkippedRows:
    """Counts bad rows, and keeps the first."""

    count: int = 0
    first: list[LeftOutRow] = field(default_factory=list)

    def __call__(self, error: RowError) -> None:
        self.count += 1
        if self.count <= LISTED_ROWS:
            row = LeftOutRow(file=str(error.path), place=error.place, reason=error.reason)
            self.first.append(row)

    def report(self) -> LeftOutRows | None:
        """Return the rows that were left out, with a warning; None if there are none."""
        if not self.count:
            return None
        listed = "; ".join(f"{row.file}, {row.place}: {row.reason}" for row in self.first)
        more = "" if self.count <= LISTED_ROWS else f"; and {self.count - LISTED_ROWS} more"
        logger.warning("%d bad rows are left out: %s%s", self.count, listed, more)
        return LeftOutRows(count=self.count, first=tuple(self.first))


def together(*reports: LeftOutRows | None) -> LeftOutRows | None:
    """Merge several reports; None if no row was left out."""
    bad = [report for report in reports if report is not None]
    if not bad:
        return None
    first = tuple(chain.from_iterable(report.first for report in bad))
    return LeftOutRows(count=sum(report.count for report in bad), first=first[:LISTED_ROWS])


LINE_END = "\n"
ESCAPED_BYTE = 0xDC00
NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Characters for non-UTF-8 bytes in a decoded text: 0xDC00 plus the byte (PEP 383)."""


def bytes_of(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file, or all of them, unpacking `.xz`."""
    with _opened(path) as file:
        content = file.read(size)
    if not content:
        raise DataError(f"{path}: the file is empty.")
    return content


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacking `.xz`; read errors become DataErrors."""
    try:
        with lzma.open(path) if path.suffix.lower() == ".xz" else path.open("rb") as file:
            yield file
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path}: damaged or unreadable: {error}. Copy it again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None


BYTES_AT_ONCE = 2**20


def stream_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file with their ends, read lazily.

    Lines and characters are those of `decoded_bytes`; a CR line end becomes LF.

    Raises:
        DataError: the file is missing, empty or damaged, raised when that is reached.
    """
    with _opened(path) as file:
        chunks = iter(lambda: file.read(BYTES_AT_ONCE), b"")
        first = next(chunks, b"")
        if not first:
            raise DataError(f"{path}: the file is empty.")
        end = LINE_END if any(b"\n" in chunk for chunk in chain((first,), chunks)) else "\r"
    with (
        _opened(path) as file,
        io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=end) as text,
    ):
        for line in text:
            yield line if end == LINE_END else line.replace(end, LINE_END)


def lines_of(path: Path, bad: OnBadRow = stop) -> Iterator[tuple[str, str]]:
    """Yield the lines of a UTF-8 file, each with its place."""
    for number, whole in enumerate(stream_lines(path), start=1):
        line = without_end(whole)
        if match := NOT_UTF8.search(line):
            bad(not_utf8(path, f"line {number}", match))
        else:
            yield f"line {number}", line


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end at LF or CR LF; the last may have no end."""
    return [*map(without_end, text.removesuffix(LINE_END).split(LINE_END))]


def without_end(line: str) -> str:
    """Return a line without the LF or CR LF at its end."""
    return line.removesuffix(LINE_END).removesuffix("\r")


def decoded_bytes(path: Path) -> str:
    """Return a file's text, with a surrogate for each byte that is not UTF-8; see NOT_UTF8.

    In a file without any LF, CR ends lines, as on old Macs.
    """
    text = bytes_of(path).decode("utf-8-sig", errors="surrogateescape")
    return text if LINE_END in text else text.replace("\r", LINE_END)


def not_utf8(path: Path, place: str, match: re.Match[str]) -> RowError:
    """Return the error for a line with a match of NOT_UTF8."""
    byte = ord(match[0]) - ESCAPED_BYTE
    return RowError(path, place, f"byte 0x{byte:02x} is not UTF-8. Save the file as UTF-8.")


TAB = "\t"
LONGEST_NAME = 40
"""Most characters of a column name to show in a message."""
LONGEST_FIELD = 2**31 - 1
"""Most characters of a CSV field, the limit of `csv`: a text may be a book."""
LONE_RETURN = re.compile("\r(?!\n)")
LONE_RETURN_MARK = "\udc0d"
"""Replaces a CR inside a line, where `csv` would end the line; no decoded byte becomes this
character."""
DOUBLED_QUOTES = re.compile('(?:^|\t)"[^\t]*""[^\t]*"(?:$|\t)')
"""Doubled quotes in a quoted field."""
ROWS_AT_ONCE = 1024
"""Rows of a Parquet file in memory at once."""
NANOSECONDS = "time64[ns]"
"""Arrow type whose values stay Arrow scalars."""


class _CsvReader(Protocol):
    """The reader type of the module `csv`, which does not export it."""

    @property
    def line_num(self) -> int: ...

    def __next__(self) -> list[str]: ...


@dataclass(frozen=True)
class Row:
    """Values by column, and their place: "line 7" as in an editor, or "row 7"."""

    place: str
    values: Mapping[str, object]
    lines: Sequence[int] = ()
    """Line of each word, if words have their own lines."""


@dataclass(frozen=True)
class Table:
    """An open data file: its columns and readers of its rows."""

    path: Path
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row]]
    """columns -> rows with these values, readable once"""
    bad: OnBadRow = stop
    """Called with each row that cannot be used."""
    read_from: Callable[[Sequence[str], int], Iterator[Row]] | None = None
    """columns, number of rows to skip -> the other rows; None if a file can only be read from its
    start"""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Arrow types of the columns, if the file has types."""

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Return the rows with the values of `columns`, read lazily.

        Raises:
            DataError: as for `require`; later errors are raised when they are reached.
        """
        self.require(columns)
        return self.read(columns)

    def require(self, columns: Sequence[str]) -> None:
        """Raise DataError for the first of `columns` that does not occur exactly once."""
        if not self.columns:
            raise DataError(f"{self.path}: the file is empty, or no row of it can be read.")
        for column in columns:
            if column not in self.columns:
                cut = [
                    name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
                    for name in self.columns
                ]
                shown = f"Columns: {', '.join(map(repr, cut))}."
                if cut != [*self.columns]:
                    shown += (
                        " If that is a row of data, add a line with the names of the columns "
                        "before it."
                    )
                raise DataError(
                    f"{self.path}: no column {column!r}.{nearest_hint(column, self.columns)} "
                    f"{shown} Name those of your file by --text-column, --pair-column (the second "
                    "text of a pair) and --label-column."
                )
            if self.columns.count(column) > 1:
                raise DataError(f"{self.path}: two columns are named {column!r}. Rename one.")


def open_table(path: Path, bad: OnBadRow = stop, *, others: Sequence[str] = ()) -> Table:
    """Open a data file by its suffix, a row of READERS.

    Args:
        path: the file.
        bad: called with each bad row.
        others: suffixes that the caller reads itself, for the error.

    Raises:
        DataError: unknown suffix, or the file is missing, empty, or not of its format.
    """
    known = {**READERS, **NESTED}
    packed = path.suffix.lower() == ".xz"
    reader = known.get((Path(path.stem) if packed else path).suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: unknown suffix {path.suffix!r}. Allowed: {', '.join((*READERS, *others))}; "
            f"{', '.join(NESTED)} in SQuAD's form. Rename the file, or save it in one of these "
            "formats."
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
        bad: called with each bad row; a bad header is an error.
        delimiter: separator of fields.
        quoted: double quotes enclose fields. If all lines of a tab-separated file have all columns
            and some quotes do not enclose a field, quotes are plain characters.
        columns: column names, for a file without a header.
    """
    encloses = quoted and not (delimiter == TAB and _has_plain_quotes(stream_lines(path)))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if encloses else csv.QUOTE_NONE
    lines = (LONE_RETURN.sub(LONE_RETURN_MARK, line) for line in stream_lines(path))
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    names = tuple(columns)
    if names:
        bytes_of(path, size=1)  # raises the error of a missing file now
    else:
        place, header = next(_fields(path, reader, stop), ("", []))
        if match := NOT_UTF8.search("\n".join(header)):
            raise not_utf8(path, place, match)
        names = tuple(header)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        for place, fields in _fields(path, reader, bad):
            values = dict(zip(names, fields, strict=False))
            if len(fields) != len(names):
                reason = (
                    f"{len(fields)} fields where there are {len(names)} columns "
                    f"({', '.join(names)}). Quote fields that hold the delimiter."
                )
                bad(RowError(path, place, reason))
            elif match := NOT_UTF8.search("\n".join(values[name] for name in columns)):
                bad(not_utf8(path, place, match))
            else:
                yield Row(place, values)

    return Table(path, names, rows, bad)


def read_jsonl(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file with one JSON object per line; its columns are the keys of all objects."""

    def rows(bad: OnBadRow) -> Iterator[Row]:
        for line, content in enumerate(stream_lines(path), start=1):
            if content.strip():
                try:
                    yield Row(f"line {line}", _object(path, f"line {line}", without_end(content)))
                except RowError as error:
                    bad(error)

    # a first pass, so that rows need not stay in memory
    first: list[RowError] = []
    names = dict.fromkeys(
        chain.from_iterable(
            row.values for row in rows(lambda error: None if first else first.append(error))
        )
    )
    if not names and first:
        bad(first[0])
    return Table(path, tuple(names), lambda columns: rows(bad), bad)


def read_parquet(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a Parquet file; its rows have no lines and are counted from 1."""
    import pyarrow
    import pyarrow.parquet

    bytes_of(path, size=1)
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from None

    def rows(columns: Sequence[str], before: int = 0) -> Iterator[Row]:
        sizes = (file.metadata.row_group(each).num_rows for each in range(file.num_row_groups))
        ends = [*accumulate(sizes)]
        groups = [number for number, end in enumerate(ends) if end > before]
        row = ends[groups[0] - 1] if groups and groups[0] else 0
        try:
            for batch in file.iter_batches(ROWS_AT_ONCE, groups, [*columns]):
                for record in range(batch.num_rows):
                    row += 1
                    if row <= before:
                        continue
                    try:
                        values = _record(path, f"row {row}", batch, record, columns)
                    except RowError as error:
                        bad(error)
                    else:
                        yield Row(f"row {row}", values)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path}, after row {row}: damaged: {error}") from None

    schema = file.schema_arrow
    types = dict(zip(schema.names, schema.types, strict=True))
    return Table(path, tuple(schema.names), rows, bad, rows, types)


def read_squad(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file of SQuAD, version 1 or 2: articles of paragraphs, which have questions.

    A row is a question with its paragraph as `context`; its place is its `id`.
    """
    try:
        content = json.loads(decoded_bytes(path))
        rows = [*_questions(content)]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}.") from None
    except (LookupError, TypeError):
        raise DataError(
            f"{path}: not a file of SQuAD, which is an object of this form: {SQUAD_FORM}. A file "
            "with a JSON object a line is named .jsonl."
        ) from None
    return Table(path, ("id", "question", "context", "answers"), lambda columns: iter(rows), bad)


SQUAD_FORM = (
    '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "1", "question": "...", '
    '"answers": [{"text": "...", "answer_start": 0}]}]}]}]}'
)


def _questions(content: Any) -> Iterator[Row]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for each in paragraph["qas"]:
                # `plausible_answers` do not count
                answers = [] if each.get("is_impossible") else each["answers"]
                values = {**each, "context": paragraph["context"], "answers": answers}
                yield Row(f"question {each.get('id', each['question'])!r}", values)


READERS: Mapping[str, Callable[[Path, OnBadRow], Table]] = {
    ".csv": partial(read_delimited, delimiter=","),
    ".tsv": partial(read_delimited, delimiter=TAB),
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}
"""Tables by suffix."""
NESTED: Mapping[str, Callable[[Path, OnBadRow], Table]] = {".json": read_squad}
"""Readers of files with nested rows, by suffix."""


def _has_plain_quotes(lines: Iterable[str]) -> bool:
    """Return whether double quotes are plain characters in a tab-separated file, as in GLUE.

    They are if every line has all columns, so that no field spans lines, and some quotes do not
    enclose a field, none are doubled within a field, and none enclose the header's names. Otherwise
    a quote at the start of a text would swallow lines.
    """

    def encloses_fields(line: str) -> bool:
        try:
            (fields,) = csv.reader([line], delimiter=TAB, strict=True)
        except csv.Error:
            return False
        return len(fields) == line.count(TAB) + 1

    tabs, all_enclose = -1, True
    for line in filter(None, map(without_end, lines)):
        if tabs < 0:
            tabs, header = line.count(TAB), line.split(TAB)
            if all(len(field) > 1 and field[0] == field[-1] == '"' for field in header):
                return False
        if line.count(TAB) != tabs:
            return False
        if '"' in line:
            if DOUBLED_QUOTES.search(line):
                return False
            all_enclose = all_enclose and encloses_fields(LONE_RETURN.sub(LONE_RETURN_MARK, line))
    return not all_enclose


def _fields(path: Path, reader: _CsvReader, bad: OnBadRow) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and fields of each record, without empty lines.

    Raises:
        RowError: a malformed record spans several lines, so its end is unknown.
    """
    while True:
        line = reader.line_num + 1
        limit = csv.field_size_limit(LONGEST_FIELD)  # a setting of the whole process
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = (
                f"{error}. A field that starts with a double quote ends with one, and quotes "
                "within it are doubled."
            )
            handle = bad if reader.line_num == line else stop
            handle(RowError(path, f"line {line}", reason))
            continue
        finally:
            csv.field_size_limit(limit)
        if fields:
            yield f"line {line}", [field.replace(LONE_RETURN_MARK, "\r") for field in fields]


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


def _record(
    path: Path, place: str, batch: pyarrow.RecordBatch, record: int, columns: Sequence[str]
) -> dict[str, object]:
    """Return the values of some columns in one row, or raise RowError."""
    import pyarrow

    values = {}
    for name in columns:
        cell = batch.column(batch.schema.get_field_index(name))[record]
        try:
            own = cell.as_py()
            if isinstance(own, datetime.time | list | dict) and NANOSECONDS in str(cell.type):
                own = cell  # `datetime.time` has no nanoseconds
            values[name] = own
        except UnicodeDecodeError:
            reason = "text that is not UTF-8. Write it as UTF-8."
            raise RowError(path, f"{place}, column {name!r}", reason) from None
        except (ArithmeticError, ImportError, ValueError, pyarrow.ArrowException) as error:
            reason = f"a value of type {cell.type}, which Python cannot represent: {error}."
            raise RowError(path, f"{place}, column {name!r}", reason) from None
    return values


Rows = Sequence[Mapping[str, Any]]


def write_delimited(path: Path, rows: Rows, *, delimiter: str) -> None:
    """Write a table with a header; cells with several values or a truth value are JSON."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        for row in rows:
            cells = row.values()
            writer.writerow([json.dumps(x) if isinstance(x, list | bool) else x for x in cells])


def write_jsonl(path: Path, rows: Rows) -> None:
    """Write one JSON object per line; dates and decimals are text, and NaN is null.

    Raises:
        DataError: JSON cannot represent a value.
    """
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_json(row) + "\n" for row in rows)


def _json(row: Mapping[str, Any]) -> str:
    write = partial(json.dumps, ensure_ascii=False, default=_as_text, allow_nan=False)
    try:
        return write(row)
    except ValueError:
        pass
    try:
        return write(_without_nan(row))
    except ValueError:
        raise DataError(
            "a column has an infinite number, which JSON cannot represent. Give --format parquet, "
            "or leave the column out of the file."
        ) from None


def _without_nan(value: Any) -> Any:
    """Return a value with None in place of NaN, also in lists and objects."""
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_without_nan, value)]
    return None if isinstance(value, float) and math.isnan(value) else value


def _of_nanoseconds(cell: Any) -> Any:
    """Return an Arrow cell with its times, also in lists and objects, as text."""
    if not cell.is_valid or NANOSECONDS not in (kind := str(cell.type)):
        return cell.as_py()
    if kind == NANOSECONDS:
        return str(cell.cast("string"))
    if kind.startswith("struct"):
        return {name: _of_nanoseconds(each) for name, each in cell.items()}
    values = [*map(_of_nanoseconds, cell.values)]
    return [[*each.values()] for each in values] if kind.startswith("map") else values


def _as_text(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    if NANOSECONDS in str(getattr(value, "type", "")):
        return _without_nan(_of_nanoseconds(value))
    raise DataError(
        f"a column has a value of type {type(value).__name__}, which JSON cannot represent. Give "
        "--format parquet, or leave the column out of the file."
    )


def write_parquet(path: Path, rows: Rows, types: Mapping[str, Any] | None = None) -> None:
    """Write a Parquet file.

    Args:
        path: the file.
        rows: missing columns become null.
        types: Arrow types of columns, by name, which are written in any case; others are inferred.

    Raises:
        DataError: a column has values of several types.
    """
    import pyarrow  # here, so that commands on command-line texts start without it
    import pyarrow.parquet

    columns = _arrow_columns(rows, types or {})
    for name, column in columns.items():
        # an empty column usually has the type of other parts
        columns[name] = column.cast(pyarrow.string()) if column.type == pyarrow.null() else column
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def arrow_types(rows: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the Arrow type of each column over all rows, read as a stream; text for one without
    values.

    Raises:
        DataError: a column has values of several types.
    """
    import pyarrow

    schema = pyarrow.schema([])
    while some := [*islice(rows, ROWS_AT_ONCE)]:
        found = pyarrow.table(_arrow_columns(some, {})).schema
        try:
            schema = pyarrow.unify_schemas([schema, found], promote_options="permissive")
        except pyarrow.ArrowException as error:
            raise _several_types(str(error)) from None
    empty, text = pyarrow.null(), pyarrow.string()
    return {each.name: text if each.type == empty else each.type for each in schema}


def _arrow_columns(rows: Rows, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Arrow array of each column; missing values become null."""
    import pyarrow

    columns = {}
    for name in dict.fromkeys((*types, *(name for row in rows for name in row))):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pyarrow.array(values, types.get(name))
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _several_types(f"{name!r}: {error}") from None
    return columns


def _several_types(reason: str) -> DataError:
    return DataError(
        f"a column has values of several types, which Parquet does not allow: {reason}. Give "
        "--format jsonl, or leave the column out of the file."
    )


ROW_WRITERS: Mapping[str, Callable[[Path, Rows], None]] = {
    ".csv": partial(write_delimited, delimiter=","),
    ".tsv": partial(write_delimited, delimiter=TAB),
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}
"""Writers by suffix."""
