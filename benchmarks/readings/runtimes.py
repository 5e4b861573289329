"""The reading of the table of runtimes: the aim, and which runtime and scheme to take here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.readings.words import ratio
from benchmarks.runtime_table import Timed, read_runtimes, rows_of
from benchmarks.runtimes import RuntimeBenchmark
from benchmarks.shapes import SHAPES, Shape

__all__ = ["runtimes_reading"]

FASTER, POINTS = 3.0, 0.2
"""The aim: times ONNX Runtime's float32, at so many points lost at most."""


def runtimes_reading(files: Mapping[str, Path]) -> str:
    """Return for each model and shape the fastest row, and whether it holds the aim."""
    aim = f"The aim is {FASTER:.1f} times ONNX Runtime's float32 at {POINTS} points lost at most:"
    lines = [line for result in read_runtimes(files) for line in _lines(result)]
    return "\n".join([aim, "", *lines, ""])


def _lines(result: RuntimeBenchmark) -> list[str]:
    rows = rows_of(result)
    return [_line(result, shape, rows) for shape in SHAPES]


def _line(result: RuntimeBenchmark, shape: Shape, rows: Sequence[Timed]) -> str:
    first, *others = rows
    speedups = {each.row.name: shape.speedup(first.times, each.times) for each in others}
    close = [timed.row.name for timed in others if _lost(timed) <= POINTS]
    fastest = max(speedups, key=lambda name: speedups[name].value)
    best = max(close, key=lambda name: speedups[name].value, default=None)
    title = f"{result.layers} layers, {shape.title}"
    words = f"- {title}: the fastest is {fastest}, {ratio(speedups[fastest])}"
    if best is None:
        return f"{words}; none loses so little."
    held = "holds it" if speedups[best].value >= FASTER else "misses it"
    if best == fastest:
        return f"{words}, which {held}."
    return f"{words}; of those that lose so little {best}, {ratio(speedups[best])}, which {held}."


def _lost(timed: Timed) -> float:
    """Return the points that a row loses."""
    return 0.0 if timed.row.change is None else -timed.row.change.value
