"""SHAPES: the inputs that graphs and runtimes are timed on, and how their times are shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.common.long_texts import LONG_TOKENS
from bertender.comparison.records import Latency, Rounds, speedup_over_processes
from bertender.core.machine import Speedup

__all__ = ["SHAPES", "Shape", "Times"]


@dataclass(frozen=True)
class Times:
    """Times of a row, on texts of natural length and on long ones."""

    natural: Latency
    long: Latency


@dataclass(frozen=True)
class Shape:
    """A row of SHAPES, a column of a table."""

    title: str
    samples: Callable[[Times], Sequence[Rounds]]
    """Milliseconds, processes x rounds x texts."""

    def median(self, times: Times) -> str:
        """Return the median in milliseconds, as a cell."""
        samples = self.samples(times)
        values = [value for rounds in samples for texts in rounds for value in texts]
        return f"{statistics.median(values):.2f}"

    def speedup(self, reference: Times, times: Times) -> Speedup:
        """Return how many times as fast as a reference a row is."""
        return speedup_over_processes(self.samples(reference), self.samples(times))

    def median_and_speedup(self, reference: Times, times: Times) -> str:
        """Return the median in milliseconds, and the speedup with its interval, as a cell."""
        return f"{self.median(times)}, {self.speedup(reference, times)}"


SHAPES = (
    Shape("one text", lambda times: times.natural.single_ms),
    Shape(f"one of {LONG_TOKENS} tokens", lambda times: times.long.single_ms),
    Shape("32 mixed", lambda times: times.natural.batch_rounds_ms),
)
