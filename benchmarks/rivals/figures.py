"""Figures of the benchmark of rivals, computed from its raw times."""

from __future__ import annotations

from benchmarks.rivals.records import RivalBenchmark
from bertender.comparison.latency import merged
from bertender.comparison.records import Latency, speedup_over_processes
from bertender.core.machine import Speedup

__all__ = ["RivalFigures", "over", "over_in_batches"]


class RivalFigures:
    """Times of the rows over all repetitions.

    Args:
        result: with one repetition or more.
    """

    def __init__(self, result: RivalBenchmark) -> None:
        self.result = result
        self.rows = result.measured.rows
        reports = merged(result.measured.repetitions, result.config)
        self.latency = {row.name: row for row in reports.rows}

    @property
    def reference(self) -> Latency:
        """The times of the first row."""
        return self.latency[self.rows[0].name]

    @property
    def noise_floor(self) -> Speedup:
        """How many times as fast as itself the first row is: what chance alone makes."""
        again = [
            rounds
            for report in self.result.measured.repetitions
            if report.noise_floor
            for rounds in report.noise_floor.single_ms
        ]
        return speedup_over_processes(self.reference.single_ms, again, self.result.config.seed)


def over(reference: Latency, row: Latency) -> Speedup:
    """Return how many times as fast as another a row is, one text at a time."""
    return speedup_over_processes(reference.single_ms, row.single_ms)


def over_in_batches(reference: Latency, row: Latency) -> Speedup:
    """Return how many times as fast as another a row is, in batches."""
    return speedup_over_processes(reference.batch_rounds_ms, row.batch_rounds_ms)
