"""Percentiles and speedups against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bertender.measure.samples import Percentiles, percentiles, speedup


def test_percentiles_of_0_to_100() -> None:
    values = percentiles(np.arange(101.0)[::-1])
    assert values == Percentiles(p50_ms=50.0, p95_ms=95.0, p99_ms=99.0)


def test_speedup_is_the_median_of_the_rounds_ratios() -> None:
    reference = [[8.0, 10.0, 99.0], [20.0, 20.0, 20.0], [30.0, 1.0, 30.0]]  # medians 10, 20, 30
    candidate = [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0], [10.0, 10.0, 10.0]]  # ratios 2, 4, 3
    result = speedup(reference, candidate)
    assert (result.value, result.low, result.high) == (3.0, 2.0, 4.0)


def test_a_steady_speedup_has_no_width() -> None:
    result = speedup([[6.0], [12.0], [18.0]], [[2.0], [4.0], [6.0]])
    assert (result.value, result.low, result.high) == (3.0, 3.0, 3.0)


def test_more_rounds_narrow_the_interval() -> None:
    generator = np.random.default_rng(0)

    def width(rounds: int) -> float:
        candidate = generator.normal(10, 1, (rounds, 1)).tolist()
        result = speedup([[20.0]] * rounds, candidate)
        return result.high - result.low

    assert width(200) < width(8) / 2


def test_the_interval_is_the_same_every_time() -> None:
    rows = np.random.default_rng(1).normal(10, 1, (6, 3)).tolist()
    assert speedup(rows[::-1], rows, seed=3) == speedup(rows[::-1], rows, seed=3)
    assert speedup(rows, rows).value == pytest.approx(1.0)
