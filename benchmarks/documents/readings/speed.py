"""Reading of a recipe's comparison, in words with numbers of its file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.words import paragraph
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import speedup_over_processes
from bertender.report.cells import speedup_cell

__all__ = ["change_of_runtime", "speed_reading", "within_one_runtime"]


def speed_reading(file: str, path: Path) -> str:
    """Return what the smaller student, 8 bits and the runtime each gain.

    The comparison must have the rows teacher, teacher-onnx, student-onnx and student-int8.
    """
    comparison = Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    rows = {row.name: row for row in comparison.rows}
    return paragraph(
        within_one_runtime(comparison),
        f"The student alone gives {_ratio(rows['teacher-onnx'], rows['student-onnx'])} "
        "(`student-onnx` over `teacher-onnx`), the 8 bits alone "
        f"{_ratio(rows['student-onnx'], rows['student-int8'])} (`student-int8` over "
        "`student-onnx`).",
        change_of_runtime(comparison),
        _size_and_score(rows["teacher"], rows["student-int8"]),
        "What is timed is the model with its tokenizer in a Python process, not an endpoint.",
    )


def within_one_runtime(comparison: Comparison) -> str:
    """Return the speedup of the 8-bit student over the teacher in one runtime, in words."""
    rows = {row.name: row for row in comparison.rows}
    ratio = _ratio(rows["teacher-onnx"], rows["student-int8"])
    return (
        f"For a single text, `student-int8` is {ratio} as fast as `teacher-onnx`, both in ONNX "
        "Runtime."
    )


def change_of_runtime(comparison: Comparison) -> str:
    """Return what ONNX Runtime gains over PyTorch with the same model, in words."""
    rows = {row.name: row for row in comparison.rows}
    ratio = _ratio(rows["teacher"], rows["teacher-onnx"])
    return (
        f"The change of runtime alone, from PyTorch to ONNX Runtime, gives {ratio} "
        "(`teacher-onnx` over `teacher`); the column `Speedup over first` includes it."
    )


def _size_and_score(teacher: ComparisonRow, small: ComparisonRow) -> str:
    assert small.change is not None, "only the first row has none"
    size = teacher.size.artifact_size_bytes / small.size.artifact_size_bytes
    return (
        f"`{small.name}` is {size:.1f} times smaller on disk than `{teacher.name}`, and its score "
        f"changes by {points(small.change)} points on these {small.score.n} examples."
    )


def _ratio(reference: ComparisonRow, candidate: ComparisonRow) -> str:
    """Return how many times as fast the candidate is, with its interval."""
    samples = reference.latency.single_ms, candidate.latency.single_ms
    return " ".join(speedup_cell(speedup_over_processes(*samples)))
