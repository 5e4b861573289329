"""Means over rounds, with intervals that hold for few of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from bertender.core.speedup import Speedup

__all__ = ["LEAST_ROUNDS", "MOST_ROUNDS", "mean_over_rounds", "ratio_over_rounds"]

T_975: Mapping[int, float] = {
    **{3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262},
    **{11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131, 17: 2.120},
    **{18: 2.110, 19: 2.101, 20: 2.093},
}
"""Rounds -> the 97.5th percentile of Student's t with one degree of freedom less, from tables: the
extra `serve` has no scipy."""

LEAST_ROUNDS, MOST_ROUNDS = min(T_975), max(T_975)


def mean_over_rounds(values: Sequence[float]) -> Speedup:
    """Return the mean of a value of each round, with the 95 % interval of Student's t.

    Each round starts its servers anew, so that the interval holds what differs from one process to
    the next.

    Args:
        values: of LEAST_ROUNDS to MOST_ROUNDS rounds.
    """
    mean = statistics.fmean(values)
    half = T_975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return Speedup(value=mean, low=mean - half, high=mean + half)


def ratio_over_rounds(references: Sequence[float], candidates: Sequence[float]) -> Speedup:
    """Return how many times a candidate's score is the reference's: the geometric mean over rounds.

    Args:
        references: scores above 0, one for each of LEAST_ROUNDS to MOST_ROUNDS rounds.
        candidates: of the same rounds.
    """
    logs = [math.log(ours / theirs) for theirs, ours in zip(references, candidates, strict=True)]
    ends = {name: math.exp(value) for name, value in mean_over_rounds(logs)}
    return Speedup(**ends)
