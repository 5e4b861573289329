"""Statistics of raw timings: percentiles, and a speedup with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertender.core.config import Record

__all__ = ["Percentiles", "Speedup", "percentiles", "speedup"]

RESAMPLES = 1000


class Percentiles(Record):
    """Of one row's samples, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


class Speedup(Record):
    """How many times as fast as the first row, with a 95 % interval over rounds.

    The interval holds the noise of this run. It does not hold what differs from one process or
    one machine to another.
    """

    value: float
    low: float
    high: float


def percentiles(samples_ms: npt.NDArray[np.float64]) -> Percentiles:
    """Return the 50th, 95th and 99th percentile of some milliseconds."""
    p50, p95, p99 = np.percentile(samples_ms, [50, 95, 99])
    return Percentiles(p50_ms=float(p50), p95_ms=float(p95), p99_ms=float(p99))


def speedup(
    reference_ms: Sequence[Sequence[float]], candidate_ms: Sequence[Sequence[float]], seed: int = 0
) -> Speedup:
    """Return the median over rounds of the ratio of round medians, and its bootstrap interval.

    Args:
        reference_ms: rounds x texts of the first row.
        candidate_ms: the same rounds of the row in question.
        seed: which rounds are resampled.
    """
    ratios = np.median(reference_ms, axis=1) / np.median(candidate_ms, axis=1)  # (rounds,)
    draws = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[draws], axis=1), [2.5, 97.5])
    return Speedup(value=float(np.median(ratios)), low=float(low), high=float(high))
