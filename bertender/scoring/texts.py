"""Files of texts, read as streams: the files of a source, and parts of their rows."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bertender.core.artifact import sha256_of
from bertender.core.config import Record
from bertender.core.errors import ConfigError, DataError, RowError
from bertender.problems.problem import Problem
from bertender.problems.reading import CellError
from bertender.tasks.labelled import LINES, cell_error
from bertender.tasks.rows import (
    NESTED,
    READERS,
    OnBadRow,
    Row,
    SkippedRows,
    Table,
    arrow_types,
    stop,
)
from bertender.tasks.text_files import TEXT, TextColumns, has_lines, open_source
from bertender.tasks.word_rows import WORDS_ALONE
from bertender.text.batch import Example, is_blank

logger = logging.getLogger(__name__)

PATTERN = frozenset("*?[")
JSON = frozenset((".json", ".jsonl"))
SUFFIXES = (*READERS, *NESTED, *LINES, *WORDS_ALONE, *(f"{suffix}.xz" for suffix in READERS))


class FileState(Record):
    """The current state of a file."""

    name: str
    size_bytes: int
    sha256: str


def files_of(source: str) -> tuple[Path, ...]:
    """Return the text files of a path, a folder or a pattern, sorted by name.

    Raises:
        DataError: there is no such file.
    """
    path = Path(source)
    if path.is_dir():
        visible = [each for each in sorted(path.iterdir()) if each.name[0] not in "._"]
        files = [each for each in visible if each.is_file() and _is_readable(each)]
        if left_out := [each.name for each in visible if each.is_file() and each not in files]:
            logger.warning("%s: no files of texts, and left out: %s", path, ", ".join(left_out))
    elif PATTERN & {*source} and not path.exists():
        files = [Path(each) for each in sorted(glob.glob(source, recursive=True))]  # noqa: PTH207
        files = [each for each in files if each.is_file()]
    else:
        return (path,)  # its reader reports errors
    if not files:
        raise DataError(
            f"{source}: no file of texts is there. Give a file, a folder of files, or a pattern in "
            f"quotes; suffixes: {', '.join(SUFFIXES)}."
        )
    return tuple(files)


def state_of(path: Path) -> FileState:
    """Return the name, size and digest of a file.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return FileState(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None


def _is_readable(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def types_of(files: Sequence[Path]) -> Mapping[str, Any]:
    """Return the Arrow types of the columns of all JSON files, whose parts alone may have others.

    Raises:
        DataError: a column has values of several types.
    """
    nested = [path for path in files if JSON & {each.lower() for each in path.suffixes}]
    tables = (open_source(path, lambda error: None) for path in nested)
    return arrow_types(row.values for table in tables for row in table.rows(table.columns))


@dataclass
class Part:
    """Rows of a source that are predicted and written together."""

    number: int
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """Rows with a prediction."""
    texts: list[Example] = field(default_factory=list)
    types: dict[str, Any] = field(default_factory=dict)
    """Arrow types of their columns, if the source has types."""
    count: int = 0
    """Rows of the source, including those without a prediction."""
    blank: int = 0
    """Lines without a text."""
    skipped: SkippedRows = field(default_factory=SkippedRows)


@dataclass
class PartReader:
    """Reads parts of a source; parts in rising order need one pass over its files.

    Args:
        files: paths and numbers of rows, including rows that cannot be used.
        columns: text columns of each file.
        rows_per_part: number of rows in a part.
        skip_bad_rows: leave out rows that cannot be used.
    """

    files: Sequence[tuple[Path, int]]
    columns: TextColumns
    rows_per_part: int
    skip_bad_rows: bool = False
    position: int = 0
    """Index of the next row in the open file."""
    events: Iterator[tuple[Table, tuple[str, ...], Row | RowError]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "position": 0, "events": None}

    def read(self, number: int) -> Part:
        """Return the rows of a part.

        Raises:
            DataError: a row cannot be used, and `skip_bad_rows` is not set.
        """
        start = number * self.rows_per_part
        if self.events is None or start != self.position:
            self.events, self.position = self._events(start), start
        part = Part(number)
        for table, columns, event in islice(self.events, self.rows_per_part):
            self.position += 1
            part.count += 1
            part.types.update(table.types)
            try:
                self._add(part, table, columns, event)
            except RowError as error:
                (part.skipped if self.skip_bad_rows else stop)(error)
        return part

    def _add(self, part: Part, table: Table, columns: Sequence[str], event: Row | RowError) -> None:
        if isinstance(event, RowError):
            raise event
        if has_lines(table.path) and is_blank(str(event.values[TEXT])):
            part.blank += 1
            return
        part.texts.append(texts_of(self.columns.problem, table.path, event, columns))
        part.rows.append(event.values)

    def _events(self, before: int) -> Iterator[tuple[Table, tuple[str, ...], Row | RowError]]:
        """Yield the rows after the first `before` ones, including unreadable ones."""
        for path, count in self.files:
            if before >= count:
                before -= count
                continue
            errors: list[RowError] = []
            table = open_source(path, errors.append)
            columns = self.columns.of(table)
            if before and table.read_from is not None:
                rows = table.read_from(self.columns.to_read(table), before)
                before = 0
            else:
                rows = table.rows(self.columns.to_read(table))
            events = in_order(rows, errors)
            yield from ((table, columns, event) for event in islice(events, before, None))
            before = 0


def in_order(rows: Iterator[Row], errors: list[RowError]) -> Iterator[Row | RowError]:
    """Yield rows, and the errors of unreadable rows, which are added to `errors`."""
    for row in rows:
        yield from errors
        errors.clear()
        yield row
    yield from errors
    errors.clear()


def texts_of(problem: Problem[Any], path: Path, row: Row, columns: Sequence[str]) -> Example:
    """Return the texts of a row.

    Raises:
        RowError: a cell cannot be used.
    """
    try:
        texts = problem.read_texts(row.values, columns)
        if problem.part_of(row.values, columns) is not None:
            raise CellError(
                columns[-1],
                "a row with one passage, and the others of its query in other rows. Give a row for "
                "each query, with a list of its passages, in JSONL or Parquet",
            )
    except CellError as error:
        raise cell_error(path, row.place, error) from None
    return texts


def checked(path: Path, columns: TextColumns, taken: Sequence[str], bad: OnBadRow) -> int:
    """Return the number of rows in a file, after checking each of them.

    Args:
        path: the file.
        columns: text columns of the file.
        taken: names of the prediction columns.
        bad: called with each row that cannot be used.

    Raises:
        ConfigError: a column of the file has the name of a prediction column.
        DataError: the file cannot be read, or lacks a column.
    """
    errors: list[RowError] = []
    table = open_source(path, errors.append)
    own = columns.of(table)
    if twice := [name for name in table.columns if name in taken]:
        raise ConfigError(
            f"{path} has a column {twice[0]!r}, and that of predictions has the same name. Rename "
            "it in the file, or give another beginning to those of predictions: --prefix new_"
        )
    count = 0
    for event in in_order(table.rows(columns.to_read(table)), errors):
        count += 1
        try:
            if isinstance(event, RowError):
                raise event
            if not (has_lines(path) and is_blank(str(event.values[TEXT]))):
                texts_of(columns.problem, path, event, own)
        except RowError as error:
            bad(error)
    return count
