"""Corpus files: their passages one by one, with an empty one where a document ends.

Only the current line or rows are in memory, however long the file is.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import pyarrow
import pyarrow.parquet

from bertender.core.errors import DataError
from bertender.tasks import rows

__all__ = ["READERS", "Reader", "documents_of_lines", "documents_of_rows", "text_of_row"]

Reader = Callable[[Path, str], Iterator[str]]
"""(file, column of the text) -> its passages; what can be refused at once is refused at once."""

LONGEST_LINE_BYTES = 2**16
"""A longer line comes in parts: some corpora are a single one."""
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
"""The bytes of a UTF-8 character after its first."""
ROWS_AT_ONCE = 256


def documents_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as passages; blank ones, and the end, close a document with one empty passage."""
    is_open = False
    for line in lines:
        text = line.strip()
        if text or is_open:
            yield text
        is_open = bool(text)
    if is_open:
        yield ""


def documents_of_rows(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of each text that hold more than white space, then an empty passage."""
    for text in texts:
        lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
        yield from lines
        if lines:
            yield ""


def text_of_row(value: object, place: str) -> str:
    """Return the text of a row, empty where it has none; DataError names what is not text."""
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"{place}: {str(value)[:40]!r} is of type {type(value).__name__}, not text. "
            "Name the column of the text with --text-column."
        )
    return value or ""


def _read_plain(path: Path, text_column: str) -> Iterator[str]:
    return documents_of_lines(_lines(path, lambda: path.open("rb")))


def _read_xz(path: Path, text_column: str) -> Iterator[str]:
    return documents_of_lines(_lines(path, lambda: lzma.open(path)))


def _read_parquet(path: Path, text_column: str) -> Iterator[str]:
    rows.read_parquet(path).require([text_column])
    return documents_of_rows(_column(path, text_column))


READERS: Mapping[str, Reader] = {
    ".txt": _read_plain,
    ".txt.xz": _read_xz,
    ".parquet": _read_parquet,
}
"""How to read a corpus file, by the end of its name."""


def _lines(path: Path, opened: Callable[[], IO[bytes]]) -> Iterator[str]:
    """Yield the lines of a text file, blank ones too."""
    try:
        with opened() as file:
            for number, part, is_whole in _parts(file):
                text = _decoded(part, f"{path}, line {number}")
                if is_whole or text.strip():
                    yield text
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path}: damaged or unreadable: {error}. Copy it again.") from None


def _parts(file: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield lines with their numbers, and whether each is a line or a part of a very long one."""
    number, rest, is_within = 1, b"", False
    while read := file.readline(LONGEST_LINE_BYTES):
        line = rest + read
        ends = read.endswith(b"\n") or len(read) < LONGEST_LINE_BYTES
        cut = len(line) if ends else _break(line)
        yield number, line[:cut], ends and not is_within
        rest, is_within, number = line[cut:], not ends, number + ends
    if rest:
        yield number, rest, False


def _break(line: bytes) -> int:
    """Return where to cut a line: after its last space, or else before its last character."""
    return line.rfind(b" ") + 1 or len(line.rstrip(CONTINUATION_BYTES)) - 1


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 text: {error}. Convert the file to UTF-8.") from None


def _column(path: Path, name: str) -> Iterator[str]:
    """Yield the texts of a Parquet file's column."""
    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[name]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield text_of_row(value, f"{path}, row {row}")
    except UnicodeDecodeError:
        raise DataError(f"{path}, after row {row}: not UTF-8 text. Write it as UTF-8.") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {row}: damaged: {error}. Copy it again.") from None
