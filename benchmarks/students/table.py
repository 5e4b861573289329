"""The table of a teacher's students, as Markdown: a row for each group of seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.points import points
from benchmarks.students.measuring import ScoredModel, StudentsBenchmark, groups_of, made_by
from bertender.core.processors import processor_name
from bertender.metrics.records import Change
from bertender.report.cells import DASH, markdown_rows, number

__all__ = ["change_of", "read_students", "retained", "students_block"]

Group = Sequence[ScoredModel]


def students_block(file: str, path: Path) -> str:
    """Return the table, what it was measured under, and its file."""
    result = read_students(path)
    rows = [_row(name, group, result) for name, group in groups_of(result.students).items()]
    headings = ["Model", "Made by", "MB", f"Texts to choose by, {result.metric}"]
    headings += [f"Held out, {result.metric}", "Of the teacher's", "Change, points"]
    first, *others = ([(cell,) for cell in row] for row in (headings, _teacher(result), *rows))
    table = "\n".join(markdown_rows(first, others, [place > 1 for place in range(len(headings))]))
    return f"{table}\n\n{_conditions(result)}\n\nRaw: `{file}`\n"


def read_students(path: Path) -> StudentsBenchmark:
    """Read the benchmark of a file."""
    return StudentsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))


def retained(group: Group, result: StudentsBenchmark) -> float | None:
    """Return the share of the teacher's held-out score that a group has; None of a score of 0."""
    teacher = result.teacher.score.value
    return statistics.mean([each.score.value for each in group]) / teacher if teacher > 0 else None


def change_of(group: Group, result: StudentsBenchmark) -> Change:
    """Return what a group gains over the teacher on average; its interval holds texts and seeds."""
    return result.gained([result.teacher], group)


def _teacher(result: StudentsBenchmark) -> list[str]:
    teacher = result.teacher
    return [*_cells(teacher.name, teacher.stage, [teacher]), DASH, DASH]


def _row(name: str, group: Group, result: StudentsBenchmark) -> list[str]:
    share, change = retained(group, result), points(change_of(group, result))
    shown = DASH if share is None else f"{share:.1%}"
    return [*_cells(name, _differences(group[0], result), group), shown, change]


def _cells(name: str, how: str, group: Group) -> list[str]:
    megabytes = statistics.mean([each.size.model_size_bytes / 1e6 for each in group])
    scores = (
        ", ".join(f"{score:.3f}" for score in values)
        for values in (
            [each.choice.value for each in group],
            [each.score.value for each in group],
        )
    )
    return [name, how, number(megabytes), *scores]


def _differences(model: ScoredModel, result: StudentsBenchmark) -> str:
    """Return the stage of a model, and the settings in which its rows are not all alike."""
    stage, settings = made_by(model.stage, model.settings)
    others = [each.settings for each in result.students if each.stage == stage]
    varying = [name for name in sorted(settings) if _varies(name, others)]
    return ", ".join([stage, *(f"`{name}={_shown(settings[name])}`" for name in varying)])


def _varies(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    return len({_shown(settings.get(name)) for settings in rows}) > 1


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _conditions(result: StudentsBenchmark) -> str:
    return (
        f"{result.teacher.score.n} held-out texts, which chose nothing; the "
        f"{result.teacher.choice.n} to choose by are of the training file, and no model learned "
        "from them. Made by: the stage, and its settings where rows differ. Several scores are of "
        "several seeds; the share and the change are of their mean, and the interval of 95 % holds "
        f"texts, and seeds where there are several. Scored on {processor_name(result.environment)}."
    )
