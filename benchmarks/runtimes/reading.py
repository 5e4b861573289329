"""The readings of tables of runtimes: the aim, and which runtime and scheme to take there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.shapes import SHAPES, Shape
from benchmarks.common.words import ratio
from benchmarks.runtimes.measuring import RuntimeBenchmark
from benchmarks.runtimes.table import Timed, machine_of, read_runtimes, rows_of
from bertender.core.speedup import Speedup
from bertender.metrics.records import Change
from bertender.report.cells import DASH, markdown_rows

__all__ = ["fastest_reading", "runtimes_reading"]

FASTER, POINTS = 3.0, 0.2
"""The aim: times ONNX Runtime's float32, at so many points lost at most."""


@dataclass(frozen=True)
class Outcome:
    """A row for one shape, next to the float model in ONNX Runtime."""

    timed: Timed
    speedup: Speedup
    change: Change

    @property
    def name(self) -> str:
        return self.timed.row.name

    def __str__(self) -> str:
        return f"{self.name}, {ratio(self.speedup)} at {points(self.change)} points"

    @property
    def reaches(self) -> bool:
        """Whether its speed is above the aim by the whole interval, its loss by the estimate."""
        return self.speedup.low >= FASTER and self.change.value >= -POINTS

    @property
    def misses(self) -> bool:
        """Whether the whole interval of its speed or of its score is below the aim."""
        return self.speedup.high < FASTER or self.change.high < -POINTS


@dataclass(frozen=True)
class Case:
    """A model on a CPU, and a shape of input."""

    result: RuntimeBenchmark
    shape: Shape
    outcomes: Sequence[Outcome]
    """The fastest first."""


HEADINGS = ("Model and machine", "Input", "Fastest", "Not distinguished from it in speed")
AIM_HEADINGS = ("The aim is held by", "It is open for")


def runtimes_reading(files: Mapping[str, Path]) -> str:
    """Return for each model and shape the fastest rows, and which hold the aim."""
    results = read_runtimes(files)
    texts = min(result.comparison.circumstances.n for result in results)
    aim = (
        f"The aim is {FASTER:.1f} times ONNX Runtime's float32 at {POINTS} points lost at most. It "
        "is held where the whole interval of the speed is above that, and the estimate of the "
        "score; open where neither interval is wholly below it; otherwise missed. One of "
        f"{texts} texts is {100 / texts:.2f} points, and most intervals of scores are wider than "
        "what the aim allows."
    )
    lines = [(*_cells(case), *_aim_cells(case)) for case in _cases(results)]
    return "\n".join([aim, "", *_table((*HEADINGS, *AIM_HEADINGS), lines), ""])


def fastest_reading(files: Mapping[str, Path]) -> str:
    """Return for each model and shape the fastest rows."""
    lines = [_cells(case) for case in _cases(read_runtimes(files))]
    return "\n".join([*_table(HEADINGS, lines), ""])


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    heads, *cells = (tuple((cell,) for cell in line) for line in (headings, *lines))
    return markdown_rows(heads, cells, [False] * len(headings))


def _cases(results: Sequence[RuntimeBenchmark]) -> Iterator[Case]:
    for result, shape in itertools.product(results, SHAPES):
        yield Case(result, shape, _outcomes(result, shape))


def _outcomes(result: RuntimeBenchmark, shape: Shape) -> list[Outcome]:
    """Return all rows but the float model in ONNX Runtime, the fastest first."""
    first, *others = rows_of(result)
    outcomes = []
    for each in others:
        assert each.row.change is not None  # every row but the first has one
        speedup = shape.speedup(first.times, each.times)
        outcomes.append(Outcome(each, speedup, each.row.change))
    return sorted(outcomes, key=lambda each: -each.speedup.value)


def _cells(case: Case) -> tuple[str, ...]:
    result, shape = case.result, case.shape
    fastest, *others = case.outcomes
    over = {each.name: shape.speedup(each.timed.times, fastest.timed.times) for each in others}
    alike = [name for name, each in over.items() if each.low <= 1]
    return f"{result.layers} layers, {machine_of(result)}", shape.title, str(fastest), _names(alike)


def _aim_cells(case: Case) -> tuple[str, ...]:
    undecided = [each.name for each in case.outcomes if not (each.reaches or each.misses)]
    held = [str(each) for each in case.outcomes if each.reaches]
    return "; ".join(held) or DASH, _names(undecided)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or DASH
