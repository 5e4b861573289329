"""OBJECTIVES: what makes a setting better than another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from bertender.core.config import Record
from bertender.core.table import Table

__all__ = ["OBJECTIVES", "Cell", "Objective"]


class Cell(Record):
    """Results of a load in a round."""

    concurrency: int
    texts_per_request: int
    texts_per_second: float
    p50_ms: float | None = Field(description="of requests with a response; None where none has")
    p99_ms: float | None = Field(
        description="of all requests; None where more than 1 % have no response"
    )


@dataclass(frozen=True)
class Objective:
    """A row of OBJECTIVES."""

    summary: str
    counts: Callable[[Cell, float], bool]
    """(cell, slo_p99_ms) -> whether its throughput counts"""

    def score(self, cells: Sequence[Cell], slo_p99_ms: float) -> float:
        """Return texts/s: of each size of requests the best load, of these the geometric mean.

        0 where no load counts for some size.
        """
        best = {cell.texts_per_request: 0.0 for cell in cells}
        for cell in cells:
            if self.counts(cell, slo_p99_ms):
                size = cell.texts_per_request
                best[size] = max(best[size], cell.texts_per_second)
        return statistics.geometric_mean(best.values()) if all(best.values()) else 0.0


OBJECTIVES = Table(
    "objective",
    {
        "throughput": Objective(
            "texts a second, whatever the latency", lambda cell, slo_p99_ms: True
        ),
        "p99": Objective(
            "texts a second of the loads whose p99 holds --slo-p99-ms",
            lambda cell, slo_p99_ms: cell.p99_ms is not None and cell.p99_ms <= slo_p99_ms,
        ),
    },
)
