"""The table of a teacher's students, as Markdown: a row for each group of seeds."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.points import gained, points
from benchmarks.students import ScoredModel, StudentsBenchmark
from bertender.metrics.records import Change
from bertender.report.cells import DASH, number

__all__ = ["change_of", "groups_of", "read_students", "retained", "students_block"]

NUMBER = re.compile(r"-\d+$")
NOT_SHOWN = frozenset({"seed", "teacher", "checkpoint_steps"})
"""Settings that say nothing about how rows differ, or that another column says."""

Group = Sequence[ScoredModel]


def students_block(file: str, path: Path) -> str:
    """Return the table, what it was measured under, and its file."""
    result = read_students(path)
    rows = [_row(name, group, result) for name, group in groups_of(result).items()]
    headings = ["Model", "Made by", "Seeds", "MB", "Training", "Texts to choose by"]
    headings += [f"Held out, {result.metric}", "Of the teacher's", "Change, points"]
    rules = [*("---" for _ in headings[:2]), *("---:" for _ in headings[2:])]
    table = "\n".join(map(_line, (headings, rules, _teacher(result), *rows)))
    return f"{table}\n\n{_conditions(result)}\n\nRaw: `{file}`\n"


def read_students(path: Path) -> StudentsBenchmark:
    """Read the benchmark of a file."""
    return StudentsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))


def groups_of(result: StudentsBenchmark) -> Mapping[str, Group]:
    """Return the students by their names without the number at the end, in order."""
    groups: dict[str, list[ScoredModel]] = {}
    for student in result.students:
        groups.setdefault(NUMBER.sub("", student.name), []).append(student)
    return groups


def retained(group: Group, result: StudentsBenchmark) -> float:
    """Return the share of the teacher's held-out score that a group has on average."""
    return _mean_score(group) / result.teacher.score.value


def change_of(group: Group, result: StudentsBenchmark) -> Change:
    """Return what a group gains over the teacher on average; its interval holds texts and seeds."""
    return gained(result.metric, result.labels, [result.teacher], group)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _teacher(result: StudentsBenchmark) -> list[str]:
    teacher = result.teacher
    return [*_cells(teacher.name, teacher.stage, [teacher]), DASH, DASH]


def _row(name: str, group: Group, result: StudentsBenchmark) -> list[str]:
    differs = _differences(group[0], result)
    share, change = f"{retained(group, result):.1%}", points(change_of(group, result))
    return [*_cells(name, differs, group), share, change]


def _cells(name: str, differs: str, group: Group) -> list[str]:
    held_out = ", ".join(f"{each.score.value:.3f}" for each in group)
    choice = statistics.mean(each.choice.value for each in group)
    megabytes = statistics.mean(each.size.model_size_bytes for each in group) / 1e6
    seeds = str(len(group))
    return [name, differs, seeds, number(megabytes), _minutes(group), f"{choice:.3f}", held_out]


def _minutes(group: Group) -> str:
    """Return the mean time of training, without that in which the teacher labels texts."""
    seconds = [each.timing.training_s for each in group if each.timing and each.timing.training_s]
    return f"{statistics.mean(seconds) / 60:.0f} min" if seconds else DASH


def _differences(model: ScoredModel, result: StudentsBenchmark) -> str:
    """Return the stage of a model, and the settings in which its rows are not all alike."""
    of_stage = [each.settings for each in result.students if each.stage == model.stage]
    names = sorted({name for settings in of_stage for name in settings} - NOT_SHOWN)
    values = {name: _value(model.settings.get(name)) for name in names if _vary(name, of_stage)}
    return ", ".join([model.stage, *(f"`{name}={value}`" for name, value in values.items())])


def _vary(name: str, of_stage: Sequence[Mapping[str, Any]]) -> bool:
    return len({_value(settings.get(name)) for settings in of_stage}) > 1


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def _mean_score(group: Group) -> float:
    return statistics.mean(each.score.value for each in group)


def _conditions(result: StudentsBenchmark) -> str:
    texts = len(result.labels)
    return (
        f"{texts} held-out texts; those to choose by are {result.teacher.choice.n} of the training "
        "file, which no model learned from. Several numbers are of several seeds. The share and "
        "the change are of their mean; the interval of 95 % holds texts, and seeds where there are "
        f"several. Training is without the teacher's part. {result.environment.cpu_model}."
    )
