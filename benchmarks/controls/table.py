"""The table of controls, as Markdown: what each way scores, and gains over labels alone.

All students of a task classify the same texts, so that a gain is paired by text; its interval holds
texts and seeds. A control's length is the one that scores best on the texts to choose by; on each
task the ways are held against the control that scores better on them. The averages over tasks are
of changes whose resamples are drawn apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.metric_names import METRIC_NAMES
from benchmarks.common.points import points
from benchmarks.controls.measuring import ControlBenchmark, TrainedStudent, chosen_lengths
from benchmarks.controls.ways_to_train import CONTROLS, WAYS
from bertender.metrics.changes import ResampledChange, mean_change, resampled_change
from bertender.metrics.records import Change, LabelSet

__all__ = [
    "Students",
    "average_gain",
    "average_gain_of_the_better",
    "control_block",
    "read_students",
]


@dataclass(frozen=True)
class Students:
    """The students of one benchmark, by way; of each control the length that was chosen."""

    benchmark: ControlBenchmark
    by_way: Mapping[str, Sequence[TrainedStudent]]
    chosen: Mapping[str, str]
    """control -> the way that stands for it"""
    place: int
    """Of the benchmark among all: what its resamples are drawn from."""

    @property
    def title(self) -> str:
        """The task and its metric."""
        metric = self.benchmark.metric
        return f"{self.benchmark.task}: {METRIC_NAMES.get(metric, metric)}"

    @property
    def stronger(self) -> str:
        """The control that scores better on the texts to choose by."""
        return max(self.chosen, key=lambda control: _choice(self.by_way[self.chosen[control]]))

    def better(self, way: str) -> str:
        """The way or the stronger control, whichever scores better on the texts to choose by."""
        return max(self.stronger, way, key=lambda name: _choice(self.of(name)))

    def of(self, name: str) -> Sequence[TrainedStudent]:
        """Return the students of a way, or of what stands for a control."""
        return self.by_way[self.chosen.get(name, name)]

    def gain(self, way: str, control: str) -> ResampledChange:
        """Return what a way gains over a control."""
        return resampled_change(
            self.benchmark.metric,
            self.benchmark.labels,
            [each.predictions for each in self.of(control)],
            [each.predictions for each in self.of(way)],
            LabelSet(count=len(self.benchmark.label_names)),
            seed=self.place,
        )


def read_students(paths: Sequence[Path]) -> list[Students]:
    """Read benchmarks, a task each."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [
        _students(ControlBenchmark.model_validate_json(text), place)
        for place, text in enumerate(texts)
    ]


def average_gain(tasks: Sequence[Students], way: str, control: str | None = None) -> Change:
    """Return what a way gains over a control on average over tasks.

    Args:
        tasks: their students.
        way: a row of WAYS that all have.
        control: None for the stronger one on each.
    """
    return mean_change([each.gain(way, control or each.stronger) for each in tasks])


def average_gain_of_the_better(tasks: Sequence[Students], way: str) -> Change:
    """Return what choosing between a way and the stronger control gains over always the control.

    On each task, the texts to choose by decide, as they may after `bertender distill --control`.
    """
    return mean_change([each.gain(each.better(way), each.stronger) for each in tasks])


def control_block(files: Mapping[str, Path]) -> str:
    """Return the table, what it was measured under, and its files."""
    tasks = read_students([*files.values()])
    ways = [name for name in _names() if all(name in _known(each) for each in tasks)]
    controls = [name for name in ways if name in CONTROLS]
    headings = ["Trained by", "Time", *(each.title for each in tasks), *_averages(controls)]
    rows = [_row(way, controls, tasks) for way in ways]
    lines = [
        f"| {' | '.join(headings)} |",
        f"| --- | ---: | {' | '.join('---' for _ in headings[2:])} |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    raw = ", ".join(f"`{name}`" for name in files)
    return "\n".join(lines) + "\n\n" + "\n".join(map(_condition, tasks)) + f"\n\nRaw: {raw}\n"


def _averages(controls: Sequence[str]) -> list[str]:
    return [f"Average over `{control}`, points" for control in controls]


def _names() -> list[str]:
    """Return the rows: the controls, and the ways that distil."""
    return [*CONTROLS, *(name for name, way in WAYS.items() if way.control is None)]


def _known(task: Students) -> set[str]:
    return {*task.by_way, *task.chosen}


def _students(benchmark: ControlBenchmark, place: int) -> Students:
    by_way: dict[str, list[TrainedStudent]] = {}
    for student in benchmark.students:
        by_way.setdefault(student.way, []).append(student)
    return Students(benchmark, by_way, chosen_lengths(benchmark.students), place)


def _choice(students: Sequence[TrainedStudent]) -> float:
    return statistics.mean(each.choice.value for each in students)


def _row(way: str, controls: Sequence[str], tasks: Sequence[Students]) -> list[str]:
    averages = [
        "-" if way == control else points(average_gain(tasks, way, control)) for control in controls
    ]
    time = _time(way, f"{controls[0]}-1", tasks)
    return [f"`{way}`", time, *(_cell(way, each) for each in tasks), *averages]


def _time(way: str, shortest: str, tasks: Sequence[Students]) -> str:
    """Return the processor's time, as a multiple of that of the shortest way."""
    ratios = [_seconds(each.of(way)) / _seconds(each.by_way[shortest]) for each in tasks]
    return f"{statistics.geometric_mean(ratios):.1f}x"


def _seconds(students: Sequence[TrainedStudent]) -> float:
    """Return the time of the first seed: the others found what the teacher makes of the texts."""
    return min(students, key=lambda each: each.seed).processor_s


def _cell(way: str, task: Students) -> str:
    mean = f"{statistics.mean(each.score.value for each in task.of(way)):.3f}"
    if way == task.stronger:
        return f"{mean}, the stronger control"
    return f"{mean}, {points(task.gain(way, task.stronger).change())}"


def _condition(task: Students) -> str:
    result, shared = task.benchmark, task.benchmark.shared
    teacher = result.teacher
    seeds = len({student.seed for student in result.students})
    lengths = ", ".join(f"`{way}`" for way in task.chosen.values())
    start = f" of {result.student}" if result.student else ""
    further = f" and {result.further_texts} further ones" if result.further_texts else ""
    choices = task.benchmark.students[0].choice.n
    return (
        f"- {result.task}: {result.train_texts} training texts{further}, {choices} to choose by, "
        f"{len(result.labels)} held out, {seeds} {'seed' if seeds == 1 else 'seeds'}; the teacher "
        f"scores {teacher.value:.3f} [{teacher.low:.3f}, {teacher.high:.3f}]; controls by the "
        f"texts to choose by: {lengths}; {shared['layers']} layers{start}, {shared['epochs']} "
        f"epochs of the last phase at {shared['learning_rate']:g}"
    )
