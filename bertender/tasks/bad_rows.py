"""Handling of rows that cannot be used: an error, or they are left out and listed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from bertender.core.card import LeftOutRow, LeftOutRows
from bertender.core.errors import RowError

__all__ = ["LISTED_ROWS", "OnBadRow", "SkippedRows", "stop", "together"]

logger = logging.getLogger(__name__)

OnBadRow = Callable[[RowError], None]
"""Called with each row that cannot be used; who returns from it leaves the row out."""

LISTED_ROWS = 10
"""So many of the rows that are left out are named; all are counted."""


def stop(error: RowError) -> None:
    """Raise the error: no row is left out."""
    raise error


@dataclass
class SkippedRows:
    """Counts the rows that it is called with, and keeps the first."""

    count: int = 0
    first: list[LeftOutRow] = field(default_factory=list)

    def __call__(self, error: RowError) -> None:
        self.count += 1
        if self.count <= LISTED_ROWS:
            row = LeftOutRow(file=str(error.path), place=error.place, reason=error.reason)
            self.first.append(row)

    def report(self) -> LeftOutRows | None:
        """Return the rows that were left out, after a warning; None where there are none."""
        if not self.count:
            return None
        listed = "; ".join(f"{row.file}, {row.place}: {row.reason}" for row in self.first)
        more = "" if self.count <= LISTED_ROWS else f"; and {self.count - LISTED_ROWS} more"
        logger.warning("%d bad rows are left out: %s%s", self.count, listed, more)
        return LeftOutRows(count=self.count, first=tuple(self.first))


def together(*reports: LeftOutRows | None) -> LeftOutRows | None:
    """Return several reports as one; None where nothing was left out."""
    bad = [report for report in reports if report is not None]
    if not bad:
        return None
    first = tuple(chain.from_iterable(report.first for report in bad))
    return LeftOutRows(count=sum(report.count for report in bad), first=first[:LISTED_ROWS])
