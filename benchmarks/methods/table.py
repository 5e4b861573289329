"""The table of methods benchmarks, as Markdown: means over seeds on each task, and what each gains.

All students of a task classify the same texts, so that what a method gains over the control is
paired by text; its interval holds the texts and the seeds. Methods are in the order of what they
score on the texts to choose by, where these were set apart, else of what they score.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.metric_names import METRIC_NAMES
from benchmarks.common.points import gain
from benchmarks.methods.measuring import CONTROL, MethodsBenchmark, StudentResult
from bertender.measure.constant import most_frequent
from bertender.metrics.scores import score

__all__ = ["method_block", "titles_of"]

NOT_RUN = "-"
CONSTANT = "always the most frequent label"
"""The row of no method, which reads no text."""


def method_block(files: Mapping[str, Path]) -> str:
    """Return the table of benchmarks, a task each, what they were measured under, and their files.

    Args:
        files: by the name that is shown; the first orders the methods.
    """
    benchmarks = [_read(path) for path in files.values()]
    by_task = [_by_method(benchmark) for benchmark in benchmarks]
    everywhere = dict.fromkeys(method for students in by_task for method in students)
    ordered = sorted(everywhere, key=lambda method: _means(method, by_task), reverse=True)
    heads = [
        f"{title}: {METRIC_NAMES[each.metric]}, points over hard"
        for title, each in zip(titles_of(benchmarks), benchmarks, strict=True)
    ]
    lines = [
        f"| Method | Params M | {' | '.join(heads)} |",
        f"| --- | ---: | {' | '.join('---' for _ in heads)} |",
        *(_row(method, by_task, benchmarks) for method in ordered),
        f"| {CONSTANT} | {NOT_RUN} | {' | '.join(map(_constant, benchmarks))} |",
    ]
    conditions = [
        f"- {title}, {_conditions(each)}"
        for title, each in zip(titles_of(benchmarks), benchmarks, strict=True)
    ]
    under = "\n".join([*conditions, f"- {_order(benchmarks[0])}"])
    raw = ", ".join(f"`{name}`" for name in files)
    return "\n".join(lines) + f"\n\n{under}\n\nRaw: {raw}\n"


def titles_of(benchmarks: Sequence[MethodsBenchmark]) -> list[str]:
    """Return a title for each benchmark: its task, which an earlier teacher may have, too."""
    tasks = [each.task for each in benchmarks]
    return [
        f"{task}, earlier teacher" if task in tasks[:place] else task
        for place, task in enumerate(tasks)
    ]


def _read(path: Path) -> MethodsBenchmark:
    return MethodsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))


Students = Mapping[str, Sequence[StudentResult]]
"""Of a task, by method."""


def _by_method(benchmark: MethodsBenchmark) -> Students:
    by_method: dict[str, list[StudentResult]] = {}
    for student in benchmark.students:
        by_method.setdefault(student.method, []).append(student)
    return by_method


def _means(method: str, by_task: Sequence[Students]) -> tuple[float, ...]:
    """Return by what a method is chosen, on each task."""
    return tuple(_choice(students.get(method, ())) for students in by_task)


def _choice(students: Sequence[StudentResult]) -> float:
    scores = [student.choice or student.score for student in students]
    return statistics.mean(score.value for score in scores) if students else -1.0


def _mean(students: Sequence[StudentResult]) -> float:
    return statistics.mean(student.score.value for student in students)


def _row(method: str, by_task: Sequence[Students], benchmarks: Sequence[MethodsBenchmark]) -> str:
    sizes = [student.parameters for students in by_task for student in students.get(method, ())]
    cells = [_cell(method, *each) for each in zip(by_task, benchmarks, strict=True)]
    return f"| `{method}` | {sizes[0] / 1e6:.1f} | {' | '.join(cells)} |"


def _cell(method: str, students: Students, result: MethodsBenchmark) -> str:
    if method not in students:
        return NOT_RUN
    mean = f"{_mean(students[method]):.3f}"
    if method == CONTROL:
        return mean
    return f"{mean}, {gain(result.metric, result.labels, students[CONTROL], students[method])}"


def _constant(result: MethodsBenchmark) -> str:
    """Return the score of the most frequent training label, or of the held-out one.

    Earlier files do not record what the training texts had.
    """
    if result.constant:
        value = result.constant.score
    else:
        predictions = [most_frequent(result.labels)] * len(result.labels)
        value = score(result.metric, result.labels, predictions)
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _conditions(result: MethodsBenchmark) -> str:
    budget, teacher = result.budget, result.teacher
    seeds = len({student.seed for student in result.students})
    return (
        f"{len(result.labels)} held-out texts; the teacher scores "
        f"{teacher.value:.3f} [{teacher.low:.3f}, {teacher.high:.3f}]. Every student, of {seeds} "
        f"seeds: the same {budget.max_train} training texts, {budget.epochs} epochs over all "
        f"phases, learning rate {budget.learning_rate:g}"
        f"{_others(result, 'learning_rate', budget.learning_rate)}, batches of "
        f"{budget.batch_size}; {budget.layers} layers{_others(result, 'layers', budget.layers)}. "
        f"Intervals of gains are of 95 %, over texts and seeds; {seeds} seeds show their spread "
        "roughly."
    )


def _order(first: MethodsBenchmark) -> str:
    """Return what the methods are ordered by, and what scored, in words."""
    if first.chosen_on != "selection":
        return f"Methods are in the order of the scores on {first.task}, which flatters the best."
    return (
        f"Methods are in the order of their scores on {first.students[0].choices} texts of the "
        f"training file of {first.task} that nothing learned from; its held-out texts, read once, "
        "score."
    )


def _others(result: MethodsBenchmark, setting: str, common: float) -> str:
    """Return which methods have another value of a setting than the common one, in words."""
    by_method = {
        student.method: getattr(student, setting)
        for student in result.students
        if student.learning_rate is not None  # older records state neither
    }
    others = [
        f"`{method}`: {'its own' if value is None else f'{value:g}'}"
        for method, value in by_method.items()
        if value != common
    ]
    return f" ({', '.join(others)})" if others else ""
