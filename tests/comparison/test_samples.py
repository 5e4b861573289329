"""Percentiles and speedups against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bertender.comparison.records import (
    Percentiles,
    percentiles,
    speedup,
    speedup_over_processes,
)


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


def processes(*ratios: float, rounds: int = 4, spread: float = 0.0) -> list[list[list[float]]]:
    """Candidates that are so many times as fast as 10 ms, a process each."""
    noise = np.random.default_rng(0).normal(0, spread, (len(ratios), rounds))
    return [
        [[10.0 / (ratio * (1 + each))] for each in row]
        for ratio, row in zip(ratios, noise, strict=True)
    ]


def test_a_speedup_over_processes_is_the_median_of_theirs() -> None:
    result = speedup_over_processes([[[10.0]] * 4] * 3, processes(2.0, 5.0, 3.0))
    assert result.value == pytest.approx(3.0)


def test_what_differs_between_processes_is_in_the_interval() -> None:
    """One process with as many rounds is sure of itself, and wrong about the next process."""
    reference = [[[10.0]] * 4] * 3
    apart = speedup_over_processes(reference, processes(2.0, 2.2, 2.4, spread=0.001))
    pooled = [[row for rounds in processes(2.2, 2.2, 2.2, spread=0.001) for row in rounds]]
    alone = speedup_over_processes([[[10.0]] * 12], pooled)
    assert alone.high - alone.low < 0.02
    assert apart.low < 2.0 and apart.high > 2.4, "wider than the processes that happened to be"


def test_rounds_of_a_process_widen_it_as_well() -> None:
    steady, restless = (processes(2.0, 2.0, 2.0, spread=each) for each in (0.0, 0.05))
    reference = [[[10.0]] * 4] * 3
    widths = [
        result.high - result.low
        for result in (speedup_over_processes(reference, each) for each in (steady, restless))
    ]
    assert widths[0] == 0.0 < 0.02 < widths[1]


def test_one_process_is_a_speedup_over_rounds() -> None:
    rows = np.random.default_rng(1).normal(10, 1, (6, 3)).tolist()
    assert speedup_over_processes([rows[::-1]], [rows]) == speedup(rows[::-1], rows)
