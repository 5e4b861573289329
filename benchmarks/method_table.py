"""The table of a methods benchmark, as Markdown: means over seeds, and what each gains.

All students answer the same texts, so that what a method gains over the control is paired by text.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.methods import CONTROL, MethodsBenchmark, StudentResult
from benchmarks.points import gain

__all__ = ["method_block"]

METRIC_NAMES = {"accuracy": "Accuracy", "f1": "F1", "matthews": "Matthews"}


def method_block(file: str, path: Path) -> str:
    """Return the table of the benchmark at `path`, what it was measured under, and its file."""
    benchmark = MethodsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    by_method: dict[str, list[StudentResult]] = {}
    for student in benchmark.students:
        by_method.setdefault(student.method, []).append(student)
    ordered = sorted(by_method.values(), key=_mean, reverse=True)
    rows = [_row(students, by_method[CONTROL], benchmark) for students in ordered]
    metric = METRIC_NAMES[benchmark.metric]
    head = (
        f"| Method | Params M | {metric}, mean | Each seed | Points over hard, 95 % interval |\n"
        "| --- | ---: | ---: | --- | ---: |\n"
    )
    return head + "\n".join(rows) + f"\n\n{_circumstances(benchmark)}\n\nRaw: `{file}`\n"


def _row(
    students: Sequence[StudentResult], control: Sequence[StudentResult], result: MethodsBenchmark
) -> str:
    scores = ", ".join(f"{student.score.value:.3f}" for student in students)
    over = "-" if students is control else gain(result.metric, result.labels, control, students)
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
        f"rate {budget.learning_rate:g}{_others(result, 'learning_rate', budget.learning_rate)}, "
        f"batches of {budget.batch_size}; {budget.layers} layers"
        f"{_others(result, 'layers', budget.layers)}."
    )


def _others(result: MethodsBenchmark, setting: str, common: float) -> str:
    """Say which methods have another value of a setting than the common one."""
    found = {student.method: getattr(student, setting) for student in result.students}
    others = [
        f"`{method}`: {'its own' if value is None else f'{value:g}'}"
        for method, value in found.items()
        if value != common
    ]
    return f" ({', '.join(others)})" if others else ""
