"""OBJECTIVES: what makes a setting better than another, and whether it can be distinguished."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from bertender.core.config import Record
from bertender.core.speedup import Speedup
from bertender.core.table import Table

__all__ = ["MOST_ROUNDS", "OBJECTIVES", "LEAST_ROUNDS", "Cell", "Objective", "ratio_over_rounds"]

T_975: Mapping[int, float] = {
    **{3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262},
    **{11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131, 17: 2.120},
    **{18: 2.110, 19: 2.101, 20: 2.093},
}
"""Rounds -> the 97.5th percentile of Student's t with one degree of freedom less, from tables: the
extra `serve` has no scipy."""

LEAST_ROUNDS, MOST_ROUNDS = min(T_975), max(T_975)


class Cell(Record):
    """What one load gave in one round."""

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


def ratio_over_rounds(references: Sequence[float], candidates: Sequence[float]) -> Speedup:
    """Return how many times a candidate's score is the reference's, over rounds.

    The geometric mean of the ratios within each round, with the 95 % interval of Student's t on
    their logarithms. Each round starts its servers anew, so that the interval holds what differs
    from one process to the next.

    Args:
        references: scores above 0, one for each of LEAST_ROUNDS to MOST_ROUNDS rounds.
        candidates: of the same rounds.
    """
    logs = [math.log(ours / theirs) for theirs, ours in zip(references, candidates, strict=True)]
    mean = statistics.fmean(logs)
    half = T_975[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Speedup(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
