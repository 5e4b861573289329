"""Files of UTF-8 text and their lines.

Bytes that are not UTF-8 belong to one line, not to the file. A line ends at LF or CR LF, as `wc`
counts; `str.splitlines` would end it at U+2028, U+0085 and form feeds too, which texts hold.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from pathlib import Path

from bertender.core.errors import DataError, RowError
from bertender.tasks.bad_rows import OnBadRow, stop

__all__ = [
    "LINE_END",
    "NOT_UTF8",
    "bytes_of",
    "decoded_bytes",
    "lines_of",
    "not_utf8",
    "split_lines",
]

LINE_END = "\n"
ESCAPED_BYTE = 0xDC00
NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Characters for bytes that are not UTF-8 in a decoded text: 0xDC00 and the byte (PEP 383)."""


def bytes_of(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file, or all of them; those in it of a `.xz`."""
    try:
        with lzma.open(path) if path.suffix.lower() == ".xz" else path.open("rb") as file:
            content = file.read(size)
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path}: damaged or unreadable: {error}. Copy it again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    if not content:
        raise DataError(f"{path}: the file is empty.")
    return content


def lines_of(path: Path, bad: OnBadRow = stop) -> Iterator[tuple[str, str]]:
    """Yield the lines of a UTF-8 file, each with its place."""
    for number, line in enumerate(split_lines(decoded_bytes(path)), start=1):
        if match := NOT_UTF8.search(line):
            bad(not_utf8(path, f"line {number}", match))
        else:
            yield f"line {number}", line


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end at LF or CR LF; the last one may have no end."""
    return [line.removesuffix("\r") for line in text.removesuffix(LINE_END).split(LINE_END)]


def decoded_bytes(path: Path) -> str:
    """Return a file's text, with a surrogate for each byte that is not UTF-8; see NOT_UTF8.

    Where no line ends at LF, CR ends lines, as in files of old Macs.
    """
    text = bytes_of(path).decode("utf-8-sig", errors="surrogateescape")
    return text if LINE_END in text else text.replace("\r", LINE_END)


def not_utf8(path: Path, place: str, match: re.Match[str]) -> RowError:
    """Return the error of a line in which NOT_UTF8 was found."""
    byte = ord(match[0]) - ESCAPED_BYTE
    return RowError(path, place, f"byte 0x{byte:02x} is not UTF-8. Save the file as UTF-8.")
