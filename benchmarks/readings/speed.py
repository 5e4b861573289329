"""How to read the README's table, in words with numbers of its file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.points import points
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import speedup_over_processes
from bertender.report.cells import speedup_cell

__all__ = ["speed_reading"]


def speed_reading(file: str, path: Path) -> str:
    """Return what half the depth, 8 bits and a change of runtime gain, apart from each other.

    The comparison must have the rows teacher, teacher-onnx, student-onnx and student-int8.
    """
    comparison = Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    rows = {row.name: row for row in comparison.rows}
    teacher, small = rows["teacher"], rows["student-int8"]
    size = teacher.size.artifact_size_bytes / small.size.artifact_size_bytes
    assert small.change is not None
    return (
        f"How to read it: within one runtime, half the depth and 8 bits answer a single text "
        f"{_ratio(rows['teacher-onnx'], small)} as fast (`student-int8` over `teacher-onnx`); of "
        f"that, the depth is {_ratio(rows['teacher-onnx'], rows['student-onnx'])} (`student-onnx` "
        f"over `teacher-onnx`) and the 8 bits are {_ratio(rows['student-onnx'], small)} "
        f"(`student-int8` over `student-onnx`). The change of runtime, PyTorch to ONNX Runtime, "
        f"is {_ratio(teacher, rows['teacher-onnx'])} of its own (`teacher-onnx` over `teacher`); "
        f"the column `Speedup over first` has both in one. `student-int8` is {size:.1f} times "
        f"smaller on disk, and its score changes by {points(small.change)} points on these "
        f"{small.score.n} examples. What is timed is the model, with its tokenizer, in a process "
        "of Python: no endpoint.\n"
    )


def _ratio(reference: ComparisonRow, candidate: ComparisonRow) -> str:
    """Return how many times as fast the candidate is, with its interval."""
    samples = reference.latency.single_ms, candidate.latency.single_ms
    return " ".join(speedup_cell(speedup_over_processes(*samples)))
