"""Statistics of raw timings: percentiles, and a speedup with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertender.core.config import Record
from bertender.core.speedup import Speedup

__all__ = [
    "Percentiles",
    "Rounds",
    "Speedup",
    "percentiles",
    "speedup",
    "speedup_over_processes",
]

RESAMPLES = 1000

Rounds = Sequence[Sequence[float]]
"""Milliseconds of a process, rounds x texts."""


class Percentiles(Record):
    """Of one row's samples, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


def percentiles(samples_ms: npt.NDArray[np.float64]) -> Percentiles:
    """Return the 50th, 95th and 99th percentile of some milliseconds."""
    p50, p95, p99 = np.percentile(samples_ms, [50, 95, 99])
    return Percentiles(p50_ms=float(p50), p95_ms=float(p95), p99_ms=float(p99))


def speedup(reference_ms: Rounds, candidate_ms: Rounds, seed: int = 0) -> Speedup:
    """Return the median over rounds of the ratio of round medians, and its bootstrap interval.

    Args:
        reference_ms: rounds x texts of the reference.
        candidate_ms: the same rounds of the row in question.
        seed: which rounds are resampled.
    """
    return speedup_over_processes([reference_ms], [candidate_ms], seed)


def speedup_over_processes(
    reference_ms: Sequence[Rounds], candidate_ms: Sequence[Rounds], seed: int = 0
) -> Speedup:
    """Return the median over processes of `speedup` in each, and its bootstrap interval.

    Resamples draw processes first and rounds within them second, since the rounds of one process
    share its luck (where its memory lies, which threads run where). A resample of so few processes
    spreads too little, by the root of (n - 1) / n: the interval is widened by that.

    Args:
        reference_ms: processes x rounds x texts of the reference.
        candidate_ms: the same of the row in question.
        seed: which processes and rounds are resampled.
    """
    ratios = np.array(
        [
            np.median(reference, axis=1) / np.median(candidate, axis=1)
            for reference, candidate in zip(reference_ms, candidate_ms, strict=True)
        ]
    )  # (processes, rounds)
    value = float(np.median(np.median(ratios, axis=1)))
    count = len(ratios)
    spread = np.median(np.median(_resampled(ratios, seed), axis=2), axis=1) / value  # (resamples,)
    widened = spread ** math.sqrt(count / (count - 1)) if count > 1 else spread
    low, high = np.percentile(value * widened, [2.5, 97.5])
    return Speedup(value=value, low=float(low), high=float(high))


def _resampled(ratios: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Return ratios (resamples, processes, rounds): processes drawn, and rounds of each."""
    generator = np.random.default_rng(seed)
    count, rounds = ratios.shape
    processes = generator.integers(0, count, (RESAMPLES, count))
    draws = generator.integers(0, rounds, (RESAMPLES, count, rounds))
    resampled: npt.NDArray[np.float64] = ratios[processes[:, :, None], draws]
    return resampled
