"""Corpus files: their passages one by one, with an empty one where a document ends.

Only the current line or rows are in memory, however long the file is.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from bertender.core.errors import DataError
from bertender.tasks.rows import read_parquet
from bertender.tasks.utf8 import split_lines
from bertender.text.example import is_blank

__all__ = ["READERS", "Reader", "documents_of_lines", "documents_of_rows", "text_of_row"]

Reader = Callable[[Path, str], Iterator[str]]
"""(file, column of the text) -> its passages; what can be refused at once is refused at once."""

LONGEST_LINE_BYTES = 2**16
"""A longer line comes in parts: some corpora are a single one."""
BYTE_ORDER_MARK = "\ufeff"
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
"""The bytes of a UTF-8 character after its first."""


def documents_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as passages; blank ones, and the end, close a document with one empty passage."""
    is_open = False
    for line in lines:
        text = "" if is_blank(line) else line.strip()
        if text or is_open:
            yield text
        is_open = bool(text)
    if is_open:
        yield ""


def documents_of_rows(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of each text in which something can be seen, then an empty passage."""
    for text in texts:
        lines = [line.strip() for line in split_lines(text) if not is_blank(line)]
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
    rows = read_parquet(path).rows([text_column])
    texts = (text_of_row(row.values[text_column], f"{path}, {row.place}") for row in rows)
    return documents_of_rows(texts)


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
                if number == 1:
                    text = text.removeprefix(BYTE_ORDER_MARK)
                if is_whole or not is_blank(text):
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
