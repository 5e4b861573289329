"""What `make demo` ends with, and what it ended with at first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.points import points
from benchmarks.readings.words import paragraph, ratio
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import speedup_over_processes
from bertender.metrics.scores import Change

__all__ = ["demo_reading"]


def demo_reading(files: Mapping[str, Path]) -> str:
    """Return the scores of the demo's models in words.

    Args:
        files: the demo's comparison, and that of an earlier recipe, by the names that are shown.
    """
    now, earlier = (_rows(path) for path in files.values())
    file, earlier_file = files
    teacher, small = now["teacher"], now["student-int8"]
    return paragraph(
        f"On {teacher.score.n} held-out sentences the bag of words scores "
        f"{now['bag-of-words'].score.value:.3f}, the teacher {teacher.score.value:.3f}; the "
        f"student differs from it by {points(_change(now['student']))} points, the 8-bit student "
        f"by {points(_change(small))} at {_speedup(teacher, small)} the teacher's speed (`{file}`: "
        "a CPU of two cores without AMX, brackets are intervals).",
        "The first recipe's student, of half the depth and without unlabelled sentences, was "
        f"faster, {_speedup(earlier['teacher'], earlier['student-int8'])} in 8 bits, and changed "
        f"the score by {points(_change(earlier['student']))} (`{earlier_file}`). Which of the two "
        "is embedded was chosen on the training sentences that are set apart.",
    )


def _rows(path: Path) -> dict[str, ComparisonRow]:
    comparison = Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    return {row.name: row for row in comparison.rows}


def _change(row: ComparisonRow) -> Change:
    assert row.change is not None, "only the first row has none"
    return row.change


def _speedup(teacher: ComparisonRow, small: ComparisonRow) -> str:
    return ratio(speedup_over_processes(teacher.latency.single_ms, small.latency.single_ms))
