"""Precision, recall and F1 of each label, or of each type of entity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any

from pydantic import Field

from bertender.core.config import Record
from bertender.metrics.metric import Score

Parts = Set[tuple[str, Any]]
"""What an answer consists of: each a label, and a place where an answer has several."""


class LabelScore(Record):
    """How well one label is found. What cannot be computed is None."""

    precision: float | None = Field(description="None where it is never predicted")
    recall: float | None = Field(description="None where no row has it")
    f1: float | None = Field(description="None where it is neither predicted nor there")
    actual: int = Field(description="how often it is there")
    predicted: int = Field(description="how often it is predicted")


class AllScores(Record):
    """Every score of a model that its kind of problem has, and those of each label."""

    scores: tuple[Score, ...] = Field(description="the metrics of the problem type, in its order")
    by_label: dict[str, LabelScore] = Field(
        {},
        description="of each label, or type of entity, in the order of the labels; none of numbers",
    )

    def of(self, metric: str) -> Score:
        """Return the score by one of the metrics."""
        return next(each for each in self.scores if each.metric == metric)


def label_scores(
    truth: Iterable[Parts], predicted: Iterable[Parts], order: Sequence[str]
) -> dict[str, LabelScore]:
    """Return the scores of each label.

    Args:
        truth: the parts of each row's true answer.
        predicted: those of a model's.
        order: labels that are there in any case, first; others follow by alphabet.
    """
    actual, found, hits = Counter[str](), Counter[str](), Counter[str]()
    for true, own in zip(truth, predicted, strict=True):
        actual.update(label for label, _ in true)
        found.update(label for label, _ in own)
        hits.update(label for label, _ in true & own)
    names = dict.fromkeys([*order, *sorted({*actual, *found})])
    return {
        name: LabelScore(
            precision=_share(hits[name], found[name]),
            recall=_share(hits[name], actual[name]),
            f1=_share(2 * hits[name], found[name] + actual[name]),
            actual=actual[name],
            predicted=found[name],
        )
        for name in names
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
