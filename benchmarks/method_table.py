"""The table of a methods benchmark, as Markdown: means over seeds, and what each gains."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.methods import CONTROL, MethodsBenchmark, StudentResult

__all__ = ["gain", "method_block"]

Z_95 = 1.96


def method_block(file: str, path: Path) -> str:
    """Return the table of the benchmark at `path`, what it was measured under, and its file."""
    benchmark = MethodsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    by_method: dict[str, list[StudentResult]] = {}
    for student in benchmark.students:
        by_method.setdefault(student.method, []).append(student)
    ordered = sorted(by_method.values(), key=_mean, reverse=True)
    rows = [_row(students, by_method[CONTROL], benchmark) for students in ordered]
    head = (
        "| Method | Params M | Accuracy, mean | Each seed | Points over hard, 95 % interval |\n"
        "| --- | ---: | ---: | --- | ---: |\n"
    )
    return head + "\n".join(rows) + f"\n\n{_circumstances(benchmark)}\n\nRaw: `{file}`\n"


def gain(
    students: Sequence[StudentResult], control: Sequence[StudentResult], labels: Sequence[int]
) -> tuple[float, float, float]:
    """Return what a method gains over the control in points, with a 95 % interval.

    Both answer the same texts, so the interval is that of the mean over texts of the difference,
    each averaged over the seeds (a normal approximation: the texts are many).
    """
    difference = 100 * (_correct(students, labels) - _correct(control, labels))
    half = Z_95 * float(difference.std(ddof=1)) / len(difference) ** 0.5
    mean = float(difference.mean())
    return mean, mean - half, mean + half


def _correct(students: Sequence[StudentResult], labels: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the share of seeds that answer each text rightly, (texts,)."""
    answers = np.array([student.predictions for student in students])
    return np.asarray((answers == np.asarray(labels)).mean(0))


def _row(
    students: Sequence[StudentResult], control: Sequence[StudentResult], result: MethodsBenchmark
) -> str:
    scores = ", ".join(f"{student.score.value:.3f}" for student in students)
    mean, low, high = gain(students, control, result.labels)
    over = "-" if students is control else f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
    size = students[0].parameters / 1e6
    name = f"`{students[0].method}`"
    return f"| {name} | {size:.1f} | {_mean(students):.3f} | {scores} | {over} |"


def _mean(students: Sequence[StudentResult]) -> float:
    return statistics.mean(student.score.value for student in students)


def _circumstances(result: MethodsBenchmark) -> str:
    budget, teacher = result.budget, result.teacher
    return (
        f"{result.task}, {len(result.labels)} held-out texts; the teacher scores "
        f"{teacher.value:.3f} [{teacher.low:.3f}, {teacher.high:.3f}]. Every student: the same "
        f"{budget.max_train} training texts, {budget.epochs} epochs over all phases, learning "
        f"rate {budget.learning_rate:g}, batches of {budget.batch_size}; {budget.layers} layers "
        "(`albert`: one layer, run as often as the teacher has layers)."
    )
