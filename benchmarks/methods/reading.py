"""The reading of the table of methods against the control, by the intervals of the gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.points import Predicted, gained
from benchmarks.common.words import above, below, holding, paragraph, ticked
from benchmarks.methods.measuring import CONTROL, MethodsBenchmark
from benchmarks.methods.table import titles_of
from bertender.measure.constant import most_frequent
from bertender.metrics.records import Change

__all__ = ["methods_reading"]

CHANCE = 0.05
"""Share of 95 % intervals that miss the true value."""


@dataclass(frozen=True)
class _Constant:
    """One label for every text."""

    predictions: tuple[int, ...]


def methods_reading(files: Mapping[str, Path]) -> str:
    """Return which methods differ from the control, and from one label for all, on which task."""
    results = [_read(path) for path in files.values()]
    titles = titles_of(results)
    gains = {title: _over_control(each) for title, each in zip(titles, results, strict=True)}
    count = sum(map(len, gains.values()))
    everywhere = set.intersection(*(set(above(each)) for each in gains.values()))
    return "\n".join(
        [
            f"What the table shows, by the intervals of the gains over `{CONTROL}`:",
            "",
            *(_task_line(task, each) for task, each in gains.items()),
            "",
            paragraph(
                f"On every task it is above 0 for {ticked(sorted(everywhere))}."
                if everywhere
                else f"No method is above `{CONTROL}` on every task by these intervals.",
                f"Of {count} intervals of 95 %, about {CHANCE * count:.0f} miss the true value by "
                "chance, so that one that hardly leaves out 0 proves little.",
            ),
            "Above always giving the most frequent label, by the same kind of interval:",
            "",
            *(_constant_line(*each) for each in zip(titles, results, strict=True)),
            "",
        ]
    )


def _read(path: Path) -> MethodsBenchmark:
    return MethodsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))


def _names(result: MethodsBenchmark) -> list[str]:
    return list(dict.fromkeys(student.method for student in result.students))


def _over_control(result: MethodsBenchmark) -> dict[str, Change]:
    controls = [student for student in result.students if student.method == CONTROL]
    return {name: _gain(result, controls, name) for name in _names(result) if name != CONTROL}


def _gain(result: MethodsBenchmark, references: Sequence[Predicted], name: str) -> Change:
    students = [student for student in result.students if student.method == name]
    return gained(result.metric, result.labels, references, students)


def _task_line(task: str, gains: Mapping[str, Change]) -> str:
    open_ones = holding(gains)
    lower = [name for name in open_ones if gains[name].value < 0]
    return (
        f"- {task}: above 0 for {ticked(above(gains))}; below 0 for {ticked(below(gains))}. The "
        f"other {len(open_ones)} cannot be distinguished from `{CONTROL}`; of these, "
        f"{ticked(lower)} scored less than it on average."
    )


def _constant_line(title: str, result: MethodsBenchmark) -> str:
    label = most_frequent(result.labels)
    constant = [_Constant((label,) * len(result.labels))]
    names = _names(result)
    better = above({name: _gain(result, constant, name) for name in names})
    shown = "all" if len(better) == len(names) else ticked(better)
    return f"- {title}: {shown}."
