"""Corpora: passages of text that stream from files, hub data sets and named corpora.

A passage is a line of text; an empty one ends a document. Only some passages are in memory at a
time, and each use reads the corpus again.
"""

from __future__ import annotations

import hashlib
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from huggingface_hub import constants

from bertender.core.errors import ConfigError, DataError, HubUnreachableError, nearest_hint
from bertender.core.hub import hub_knows
from bertender.core.progress import track
from bertender.tasks.docs import docs_corpus
from bertender.tasks.rows import read_parquet, split_lines
from bertender.text.batch import is_blank

HELD_OUT_EVERY = 50
"""One in so many passages, or runs of passages, is held out."""
PASSAGES_AT_ONCE = 1000
"""Passages to tokenise in one call, since calls for single passages are slow."""
LONGEST_LINE_BYTES = 2**16
"""Most characters of a line. Longer lines are split, since some corpora are a single line."""
BYTE_ORDER_MARK = "\ufeff"
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
"""Continuation bytes of UTF-8."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
"""OWNER/NAME, or OWNER/NAME:SUBSET, of a data set on the hub."""

CORPORA: Mapping[str, Callable[[], Iterable[str]]] = {"docs": docs_corpus}
"""Named corpora; other names are files or hub data sets."""


@dataclass(frozen=True)
class Corpus:
    """Passages of a corpus, with an empty one after each document; each iteration reads it again.

    Args:
        source: "docs", text files (a blank line ends a document), Parquet files or hub data sets
            (a row is a document); several by commas.
        text_column: column of the text in Parquet files and hub data sets.
    """

    source: str
    text_column: str = "text"

    def __iter__(self) -> Iterator[str]:
        """Yield the passages.

        Raises:
            ConfigError, HubUnreachableError: as in `opened`, before files are read.
            DataError: a file is damaged, is not UTF-8, or has no such column.
        """
        for passages in self.opened():
            yield from passages

    def opened(self) -> list[Iterator[str]]:
        """Return the passages of each part; no file is read yet.

        Raises:
            ConfigError: a part is neither a named corpus, nor a file, nor a data set.
            HubUnreachableError: no reachable hub has a data set.
        """
        return [_open_part(part.source, part.text_column) for part in self.parts()]

    def parts(self) -> list[Corpus]:
        """Return its comma-separated parts as corpora."""
        return [Corpus(name.strip(), self.text_column) for name in self.source.split(",")]


@dataclass(frozen=True)
class Survey:
    """Counts of one reading of a corpus."""

    sha256: str
    passages: int
    documents: int
    characters: int = 0

    def check_enough(self, name: str = "") -> None:
        """Raise DataError where there are too few passages to train and hold out.

        Args:
            name: name of the corpus, where it is one of several.
        """
        if self.passages < HELD_OUT_EVERY:
            raise DataError(
                f"{name and f'corpus {name!r}: '}{self.passages} passages are too few to train on; "
                f"at least {HELD_OUT_EVERY}. "
                "Give more text, each passage on a line of its own."
            )


@dataclass(frozen=True)
class Watched:
    """Passages of a surveyed corpus, with a progress bar."""

    passages: Iterable[str]
    surveyed: Survey
    description: str

    def __iter__(self) -> Iterator[str]:
        total = self.surveyed.passages + self.surveyed.documents
        return track(self.passages, self.description, total, every=PASSAGES_AT_ONCE)


def survey(passages: Iterable[str]) -> Survey:
    """Read a corpus once for its size and its digest, including ends of documents."""
    digest = hashlib.sha256()
    counts = {True: 0, False: 0}
    characters = 0
    for passage in track(passages, "read the corpus", every=PASSAGES_AT_ONCE):
        digest.update(f"{len(passage)} {passage}".encode())  # a passage may have line ends
        counts[bool(passage)] += 1
        characters += len(passage)
    return Survey(digest.hexdigest(), counts[True], counts[False], characters)


def _open_part(name: str, text_column: str) -> Iterator[str]:
    """Return the passages of a part of the corpus."""
    if name in CORPORA:
        return documents_of_lines(CORPORA[name]())
    ending = next((ending for ending in READERS if name.endswith(ending)), None)
    if ending is not None:
        if not Path(name).is_file():
            raise ConfigError(
                f"corpus {name!r}: there is no such file. Give a path from here, or an absolute "
                "one."
            )
        return READERS[ending](Path(name), text_column)
    if HUB_NAME.fullmatch(name) and not Path(name).exists():
        return read_hub(name, text_column)
    raise ConfigError(
        f"corpus {name!r} is neither a named corpus ({', '.join(CORPORA)}), nor a file that ends "
        f"in {' or '.join(READERS)}, nor a hub data set as OWNER/NAME.{nearest_hint(name, CORPORA)}"
    )


def documents_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as passages; blank lines and the end become one empty passage."""
    is_open = False
    for line in lines:
        text = "" if is_blank(line) else line.strip()
        if text or is_open:
            yield text
        is_open = bool(text)
    if is_open:
        yield ""


def documents_of_rows(texts: Iterable[str]) -> Iterator[str]:
    """Yield the non-blank lines of each text, then an empty passage."""
    for text in texts:
        lines = [line.strip() for line in split_lines(text) if not is_blank(line)]
        yield from lines
        if lines:
            yield ""


def text_of_row(value: object, place: str) -> str:
    """Return the text of a row, or an empty one; DataError for other types."""
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"{place}: {str(value)[:40]!r} is of type {type(value).__name__}, not text. "
            "Name the column of the text with --text-column."
        )
    return value or ""


def _read_lines(path: Path, text_column: str) -> Iterator[str]:
    return documents_of_lines(_lines(path))


def _read_parquet(path: Path, text_column: str) -> Iterator[str]:
    rows = read_parquet(path).rows([text_column])
    texts = (text_of_row(row.values[text_column], f"{path}, {row.place}") for row in rows)
    return documents_of_rows(texts)


READERS: Mapping[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _read_lines,
    ".txt.xz": _read_lines,
    ".parquet": _read_parquet,
}
"""Readers by file name suffix: (file, text column) -> passages."""


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, including blank ones."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            for number, part, is_whole in _split_lines(file):
                try:
                    text = part.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path}, line {number}: not UTF-8 text: {error}. Convert the file to "
                        "UTF-8."
                    ) from None
                if number == 1:
                    text = text.removeprefix(BYTE_ORDER_MARK)
                if is_whole or not is_blank(text):
                    yield text
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path}: damaged or unreadable: {error}. Copy it again.") from None


def _split_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield lines with their numbers, and whether each is a whole line or a part of a long one."""
    number, rest, is_within = 1, b"", False
    while read := file.readline(LONGEST_LINE_BYTES):
        line = rest + read
        ends = read.endswith(b"\n") or len(read) < LONGEST_LINE_BYTES
        cut = len(line)
        if not ends:  # split after the last space, or before the last character
            cut = line.rfind(b" ") + 1 or len(line.rstrip(CONTINUATION_BYTES)) - 1
        yield number, line[:cut], ends and not is_within
        rest, is_within, number = line[cut:], not ends, number + ends
    if rest:
        yield number, rest, False


def read_hub(name: str, text_column: str) -> Iterator[str]:
    """Return the passages of a hub data set's training split; a row is a document.

    Raises:
        HubUnreachableError: no reachable hub has the data set (known within seconds), or the hub
            stops responding later.
        ConfigError: the data set has no such subset, or no training split.
        DataError: its rows lack the column, or have no text there.
    """
    repository, _, subset = name.partition(":")
    if constants.HF_HUB_OFFLINE or not hub_knows(f"api/datasets/{repository}"):
        raise HubUnreachableError(
            f"corpus {name!r} is not a file, and no reachable hub has a data set of this name. "
            "Give files, or go online (and unset HF_HUB_OFFLINE)."
        )
    import datasets  # a slow import that local files do not need

    try:
        rows = datasets.load_dataset(repository, subset or None, split="train", streaming=True)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"corpus {name!r} cannot be opened: {error}. A subset is named OWNER/NAME:SUBSET."
        ) from None
    return documents_of_rows(_texts(name, iter(rows), text_column))


def _texts(name: str, rows: Iterator[Mapping[str, Any]], text_column: str) -> Iterator[str]:
    row = 0
    try:
        for row, values in enumerate(rows, start=1):
            if text_column not in values:
                raise DataError(
                    f"corpus {name!r}: no column {text_column!r}."
                    f"{nearest_hint(text_column, values)} "
                    f"Columns: {', '.join(map(repr, values))}."
                )
            yield text_of_row(values[text_column], f"corpus {name!r}, row {row}")
    except OSError as error:
        raise HubUnreachableError(
            f"corpus {name!r}: the hub stopped responding after row {row}: {error}. Try again, or "
            "keep the data set as Parquet files and give these."
        ) from None
