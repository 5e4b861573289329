"""The reading of the table of pre-training objectives: what a task tells apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.points import gained
from benchmarks.common.words import above, below, holding, ticked
from benchmarks.objectives.measuring import (
    FineTuned,
    ObjectivesBenchmark,
    PretrainedEncoder,
    ScoredTask,
)
from bertender.measure.constant import most_frequent
from bertender.metrics.records import Change, LabelSet
from bertender.metrics.scores import Score, score

__all__ = [
    "REFERENCE",
    "Gains",
    "classifiers_of",
    "constant_score",
    "gains_of",
    "objectives_reading",
]

REFERENCE = "mlm"
"""The objective that others are compared with."""


Gains = Mapping[str, Mapping[str, Change]]
"""Task -> objective -> its points over REFERENCE."""


def objectives_reading(result: ObjectivesBenchmark, gains: Gains) -> str:
    """Return for each task the objectives above and below REFERENCE, and above one label."""
    return "\n".join(_line(task, result, gains[task.name]) for task in result.tasks)


def gains_of(task: ScoredTask, result: ObjectivesBenchmark) -> dict[str, Change]:
    """Return the points of each other objective over REFERENCE; none without it."""
    by_objective = {each.objective: classifiers_of(each, task) for each in result.encoders}
    reference = by_objective.pop(REFERENCE, ())
    labels = LabelSet(count=len(task.label_names), names=task.label_names)
    return {
        name: gained(task.metric, task.labels, reference, own, label_set=labels)
        for name, own in by_objective.items()
        if reference and own
    }


def classifiers_of(encoder: PretrainedEncoder, task: ScoredTask) -> Sequence[FineTuned]:
    """Return an encoder's classifiers of a task."""
    return [each for each in encoder.classifiers if each.task == task.name]


def constant_score(task: ScoredTask) -> Score:
    """Return the score of the most frequent held-out label, given to every text."""
    predictions = [most_frequent(task.labels)] * len(task.labels)
    names = task.label_names
    return score(task.metric, task.labels, predictions, label_count=len(names), labels=names)


def _line(task: ScoredTask, result: ObjectivesBenchmark, gains: Mapping[str, Change]) -> str:
    one = constant_score(task).value
    means = {
        each.objective: statistics.mean([every.score.value for every in own])
        for each in result.encoders
        if (own := classifiers_of(each, task))
    }
    learned = [name for name, mean in means.items() if mean > one]
    return (
        f"- {task.name}, against `{REFERENCE}` by the intervals: above {ticked(above(gains))}; "
        f"below {ticked(below(gains))}; not distinguished {ticked(holding(gains))}. Above one "
        f"label for every text ({one:.3f}), by their means: {ticked(learned)}."
    )
