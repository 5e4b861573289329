"""The control that reads no text: always the most frequent label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from bertender.core.config import Record
from bertender.metrics.scores import Score, score
from bertender.tasks.task import Task

__all__ = ["ConstantRow", "constant_row", "most_frequent"]


class ConstantRow(Record):
    """One label for every text, scored as a model is."""

    label: str = Field(description="the most frequent one of the training texts")
    score: Score

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"always {self.label}"


def constant_row(task: Task) -> ConstantRow:
    """Return the score of the most frequent training label on the held-out texts."""
    problem = task.problem
    targets = task.calibration.label_ids
    label = most_frequent([each for own in targets for each in problem.labels_of(own)])
    count = len(task.labels)
    predictions = [problem.constant(label, count, example) for example in task.dev.examples]
    return ConstantRow(
        label=task.labels[label],
        score=score(
            task.metric,
            task.dev.label_ids,
            predictions,
            label_count=count,
            labels=task.labels,
        ),
    )


def most_frequent(label_ids: Sequence[int]) -> int:
    """Return the most frequent label, the lowest of several."""
    counts = Counter(label_ids)
    return min(counts, key=lambda label: (-counts[label], label))
