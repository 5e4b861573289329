"""The readings of tables of runtimes: the aim, and which runtime and scheme to take there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.readings.words import ratio
from benchmarks.runtime_table import Timed, processor, read_runtimes, rows_of
from benchmarks.runtimes import RuntimeBenchmark
from benchmarks.shapes import SHAPES, Shape
from bertender.core.speedup import Speedup

__all__ = ["fastest_reading", "runtimes_reading"]

FASTER, POINTS = 3.0, 0.2
"""The aim: times ONNX Runtime's float32, at so many points lost at most."""


def runtimes_reading(files: Mapping[str, Path]) -> str:
    """Return for each model and shape the fastest row, and whether it holds the aim."""
    aim = f"The aim is {FASTER:.1f} times ONNX Runtime's float32 at {POINTS} points lost at most:"
    lines = [line for result in read_runtimes(files) for line in _lines(result)]
    return "\n".join([aim, "", *lines, ""])


def fastest_reading(files: Mapping[str, Path]) -> str:
    """Return for each model and shape the fastest row."""
    lines = [
        f"{_fastest(result, shape, _speedups(result, shape))}."
        for result in read_runtimes(files)
        for shape in SHAPES
    ]
    return "\n".join([*lines, ""])


def _lines(result: RuntimeBenchmark) -> list[str]:
    return [_line(result, shape) for shape in SHAPES]


def _speedups(result: RuntimeBenchmark, shape: Shape) -> dict[str, Speedup]:
    """Return how many times as fast as the float model each other row is, by its name."""
    first, *others = rows_of(result)
    return {each.row.name: shape.speedup(first.times, each.times) for each in others}


def _fastest(result: RuntimeBenchmark, shape: Shape, speedups: Mapping[str, Speedup]) -> str:
    fastest = _best(speedups)
    title = f"{result.layers} layers on {processor(result)}, {shape.title}"
    return f"- {title}: the fastest is {fastest}, {ratio(speedups[fastest])}"


def _best(speedups: Mapping[str, Speedup]) -> str:
    return max(speedups, key=lambda name: speedups[name].value)


def _line(result: RuntimeBenchmark, shape: Shape) -> str:
    speedups = _speedups(result, shape)
    close = {timed.row.name for timed in rows_of(result)[1:] if _lost(timed) <= POINTS}
    fastest = _best(speedups)
    words = _fastest(result, shape, speedups)
    if not close:
        return f"{words}; none loses so little."
    best = _best({name: each for name, each in speedups.items() if name in close})
    held = "holds it" if speedups[best].value >= FASTER else "misses it"
    if best == fastest:
        return f"{words}, which {held}."
    return f"{words}; of those that lose so little {best}, {ratio(speedups[best])}, which {held}."


def _lost(timed: Timed) -> float:
    """Return the points that a row loses."""
    return 0.0 if timed.row.change is None else -timed.row.change.value
