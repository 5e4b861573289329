"""Metric: a score of predictions, with a 95 % interval, and its paired change.

Resampling rows with replacement and counting how often each was drawn is the same as drawing these
counts from a multinomial, so a bootstrap here draws counts and never touches the rows again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import DataError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows: TypeAlias = Sequence[Any] | IntArray
"""The labels of the rows, or predictions of them."""

POINTS = 100.0
"""A metric point is a hundredth of the metric."""
CONFIDENCE = 0.95
RESAMPLES = 1000


class Score(Record):
    """A metric's value on n rows, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    n: int
    undefined: str | None = Field(
        None, description="why the metric says nothing about these rows, where its value is 0"
    )


class Change(Record):
    """Candidate minus reference on the same rows, in metric points, with its 95 % interval."""

    value: float = Field(description="in points: 1.0 is a hundredth of the metric")
    low: float
    high: float


@dataclass(frozen=True)
class LabelSet:
    """The labels of a task, as far as they are known."""

    count: int | None = None
    """None counts those that occur."""
    names: Sequence[str] = ()


UNKNOWN = LabelSet()


class Metric(ABC):
    """A row of METRICS: a score, of which more is better."""

    only_shown: str = ""
    """Why nothing is chosen by it; empty where it may be."""
    reads_logits: bool = False
    """Its predictions are the logits of the rows, (rows, labels), and not what they decide."""

    def chance(self, labels: int) -> float | None:
        """Return what a guess scores; None where that depends on the shares of the labels."""
        return None

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        """Return why the score says nothing about some rows; None where it does."""
        return None

    def count(self, label_ids: Rows, known: LabelSet) -> int:
        """Return how many of some rows are scored."""
        return len(label_ids)

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        """Return the value and its interval."""
        (value,), (draws,) = self.resampled(label_ids, [predictions], known, seed)
        return value, *percentiles(draws)

    @abstractmethod
    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        """Return the value of each model's predictions, and its values (resamples,)."""


class RowsMetric(Metric):
    """A metric whose value follows from how often each row is drawn."""

    @abstractmethod
    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[Any, Any]]:
        """Return truth and predictions of each model as arrays."""

    @abstractmethod
    def of_draws(self, truth: Any, predicted: Any, draws: FloatArray) -> FloatArray:
        """Return the value of each resample (resamples,), given how often each draws each row
        (resamples, rows)."""

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        check_aligned(label_ids, predictions)
        models = self.prepared(label_ids, predictions, known)
        whole, draws = np.ones((1, len(label_ids))), drawn(len(label_ids), seed)
        values = [float(self.of_draws(*each, whole)[0]) for each in models]
        return values, [self.of_draws(*each, draws) for each in models]


class OneOrSeveral(Metric):
    """A score that has one meaning for a label a row, and another for several.

    Args:
        one: where a row has one label.
        several: where it has a set of them.
    """

    def __init__(self, one: Metric, several: Metric) -> None:
        self.one = one
        self.several = several

    def of(self, label_ids: Rows) -> Metric:
        """Return the one that some rows have."""
        return self.several if len(label_ids) and np.ndim(label_ids[0]) else self.one

    def chance(self, labels: int) -> float | None:
        return self.one.chance(labels)

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        return self.of(label_ids).undefined(label_ids, predictions, known)

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        return self.of(label_ids).score(label_ids, predictions, known, seed)

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        return self.of(label_ids).resampled(label_ids, predictions, known, seed)


def named(number: int, known: LabelSet) -> str:
    """Return how a message calls a label."""
    return repr(known.names[number]) if number < len(known.names) else str(number)


def percentiles(values: FloatArray) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def drawn(rows: int, seed: int) -> FloatArray:
    """Return how often each resample draws each row, (resamples, rows)."""
    chances = np.full(rows, 1 / rows)
    return np.random.default_rng(seed).multinomial(rows, chances, RESAMPLES).astype(np.float64)


def divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return quotients, 0 where there is nothing to divide by."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def check_aligned(label_ids: Rows, predictions: Sequence[Rows]) -> None:
    """Raise DataError where there are no rows, or not one prediction for each."""
    if not len(label_ids):
        raise DataError("no rows to score: the split is empty. Give at least one labelled example.")
    for each in predictions:
        if len(each) != len(label_ids):
            raise DataError(
                f"{len(label_ids)} labels and {len(each)} predictions cannot be compared: there "
                "must be one prediction a row, in the order of the labels."
            )
