"""Journal: the predictions of a run so far, on disk, from which a killed run continues."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from bertender.core.errors import BusyError
from serve.client.served_model import Classification

__all__ = ["Journal", "Memory", "Predictions", "journal_of", "open_journal"]

logger = logging.getLogger(__name__)


class _UnusableJournalError(Exception):
    """A journal that no run can continue; says why."""


class Predictions(Protocol):
    """Predictions by row, to which a run adds those of each response."""

    by_row: dict[int, Classification]

    def add(self, rows: Sequence[int], predictions: Sequence[Classification]) -> None: ...


class Memory:
    """Predictions of a run that writes no file."""

    def __init__(self) -> None:
        self.by_row: dict[int, Classification] = {}

    def add(self, rows: Sequence[int], predictions: Sequence[Classification]) -> None:
        self.by_row.update(zip(rows, predictions, strict=True))


class Journal(Memory):
    """Predictions that are in a file too, a line for each response; see `open_journal`."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__()
        self.file = file

    def add(self, rows: Sequence[int], predictions: Sequence[Classification]) -> None:
        super().add(rows, predictions)
        dumped = [each.model_dump(mode="json") for each in predictions]
        self.file.write(json.dumps({"rows": list(rows), "predictions": dumped}) + "\n")
        self.file.flush()


def journal_of(output: Path) -> Path:
    """Return the path of the journal next to an output file."""
    return output.with_name(f".{output.name}.progress")


@contextmanager
def open_journal(output: Path, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal of an output file; it is removed when the block ends without an error.

    Args:
        output: the file that will be written in the block.
        identity: what predictions depend on; a journal of another identity is begun anew.

    Raises:
        BusyError: another process has it open.
    """
    path = journal_of(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process writes {output} now. Wait for it, or give another --output."
            ) from None
        journal = Journal(file)
        _restore(journal, dict(identity), path)
        yield journal
        path.unlink()


def _restore(journal: Journal, identity: Mapping[str, Any], path: Path) -> None:
    """Read what an earlier run has written, and cut off a line that it did not finish.

    Whole lines stay where they are: a kill at any moment loses none.
    """
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        entries = _entries(whole, identity)
    except _UnusableJournalError as error:
        logger.warning("%s %s: begun anew", path, error)
        entries, whole = [], b""
    journal.file.truncate(len(whole))
    if not whole:
        journal.file.write(json.dumps(identity) + "\n")
        journal.file.flush()
    for rows, predictions in entries:
        Memory.add(journal, rows, predictions)


def _entries(
    whole: bytes, identity: Mapping[str, Any]
) -> list[tuple[list[int], list[Classification]]]:
    """Return the entries of whole lines, of which the first is the identity."""
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines and lines[0] != identity:
            raise _UnusableJournalError("is of other texts or another model")
        return [
            (line["rows"], [Classification(**each) for each in line["predictions"]])
            for line in lines[1:]
        ]
    except (ValueError, KeyError, TypeError) as error:  # no JSON, or JSON of another shape
        raise _UnusableJournalError(f"is damaged ({error})") from None
