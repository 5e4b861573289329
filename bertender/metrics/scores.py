"""Metrics of a classification, each with a 95 % interval; and the honest difference of two models.

The values are scikit-learn's, the intervals Wilson's or a bootstrap's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from bertender.core.config import Record
from bertender.core.errors import DataError
from bertender.core.table import Table
from bertender.metrics.resampling import (
    CONFIDENCE,
    Counts,
    count_labels,
    mean_of_drawn,
    percentiles,
    resampled_cells,
)

__all__ = [
    "Change",
    "METRICS",
    "Metric",
    "Score",
    "bootstrap_interval",
    "paired_change",
    "paired_change_of_means",
    "score",
    "wilson_interval",
]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

POINTS = 100.0
"""A metric point is a hundredth of the metric."""


class Score(Record):
    """A metric's value on n rows, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    n: int


class Change(Record):
    """Candidate minus reference on the same rows, in metric points, with its 95 % interval."""

    value: float = Field(description="in points: 1.0 is a hundredth of the metric")
    low: float
    high: float


@dataclass(frozen=True)
class Metric:
    """A row of METRICS: the value over rows, the same over counts, and how its interval is made."""

    value: Callable[[IntArray, IntArray, int], float]
    from_counts: Callable[[Counts], FloatArray]
    interval: Callable[[Metric, IntArray, IntArray, int, int], tuple[float, float]]


def score(
    metric: str,
    label_ids: Sequence[int] | IntArray,
    predictions: Sequence[int] | IntArray,
    *,
    label_count: int | None = None,
    seed: int = 0,
) -> Score:
    """Return a metric's value and 95 % interval.

    Args:
        metric: a name of METRICS.
        label_ids: the true label of each row.
        predictions: the predicted label of each row.
        label_count: how many labels the task has; None counts those that occur.
        seed: what the bootstrap draws from.

    Raises:
        UnknownNameError: there is no such metric.
        DataError: there are no rows, not as many predictions as labels, or ids of other labels.
    """
    row = METRICS[metric]
    truth, (answers,) = _aligned(label_ids, predictions)
    labels = _labels_in(label_count, truth, answers)
    low, high = row.interval(row, truth, answers, labels, seed)
    value = row.value(truth, answers, labels)
    return Score(metric=metric, value=value, low=low, high=high, n=len(truth))


def paired_change(
    metric: str,
    label_ids: Sequence[int] | IntArray,
    reference_predictions: Sequence[int] | IntArray,
    candidate_predictions: Sequence[int] | IntArray,
    *,
    label_count: int | None = None,
    seed: int = 0,
) -> Change:
    """Return what the candidate gains over the reference, in points, by a paired bootstrap.

    Both models answer the same rows, so most of a score's uncertainty (which rows were drawn)
    is common to both and cancels: this interval is narrower than the two scores' intervals say.
    Arguments and errors are those of `score`.
    """
    return paired_change_of_means(
        metric,
        label_ids,
        [reference_predictions],
        [candidate_predictions],
        label_count=label_count,
        seed=seed,
    )


def paired_change_of_means(
    metric: str,
    label_ids: Sequence[int] | IntArray,
    references: Sequence[Sequence[int] | IntArray],
    candidates: Sequence[Sequence[int] | IntArray],
    *,
    label_count: int | None = None,
    seed: int = 0,
) -> Change:
    """Return what the candidates gain over the references on average, by a paired bootstrap.

    Both are the predictions of several models on the same rows, such as one method's students of
    several seeds. Each resample draws rows, the same for all models, and models: so the interval
    holds what other texts and what other seeds would change. Of one model alone, the seed's part
    is unknown and not in it. Other arguments and errors are those of `score`.
    """
    row = METRICS[metric]
    truth, answers = _aligned(label_ids, *references, *candidates)
    labels = _labels_in(label_count, truth, *answers)
    cells, draws = resampled_cells(np.stack([truth, *answers]), seed)
    resampled = [row.from_counts(count_labels(cells[0], own, draws, labels)) for own in cells[1:]]
    values = [row.value(truth, own, labels) for own in answers]
    first = len(references)
    generator = np.random.default_rng((seed, len(answers)))
    means = [mean_of_drawn(part, generator) for part in (resampled[:first], resampled[first:])]
    low, high = percentiles(means[1] - means[0])
    value = float(np.mean(values[first:]) - np.mean(values[:first]))
    return Change(value=POINTS * value, low=POINTS * low, high=POINTS * high)


def wilson_interval(
    metric: Metric, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
) -> tuple[float, float]:
    """Return Wilson's interval of a share of right answers."""
    hits = int((label_ids == predictions).sum())
    interval = binomtest(hits, len(label_ids)).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_interval(
    metric: Metric, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
) -> tuple[float, float]:
    """Return the percentile interval over resampled rows."""
    cells, draws = resampled_cells(np.stack([label_ids, predictions]), seed)
    return percentiles(metric.from_counts(count_labels(cells[0], cells[1], draws, labels)))


def _accuracy(label_ids: IntArray, predictions: IntArray, labels: int) -> float:
    return float(accuracy_score(label_ids, predictions))


def _accuracy_of_counts(counts: Counts) -> FloatArray:
    return _divide(counts.hits.sum(axis=1), counts.actual.sum(axis=1))


def _f1(label_ids: IntArray, predictions: IntArray, labels: int) -> float:
    """F1 of label 1 for two labels; for more, the mean over the labels that occur."""
    average = "binary" if labels <= 2 else "macro"
    return float(f1_score(label_ids, predictions, average=average, zero_division=0.0))


def _f1_of_counts(counts: Counts) -> FloatArray:
    both = counts.actual + counts.predicted
    by_label = _divide(2 * counts.hits, both)  # (resamples, labels)
    if by_label.shape[1] <= 2:
        return by_label[:, 1]
    return _divide(by_label.sum(axis=1), (both > 0).sum(axis=1))


def _matthews(label_ids: IntArray, predictions: IntArray, labels: int) -> float:
    return float(matthews_corrcoef(label_ids, predictions))


def _matthews_of_counts(counts: Counts) -> FloatArray:
    """Gorodkin's R_K, which for two labels is Matthews' coefficient; 0 where it is undefined."""
    rows = counts.actual.sum(axis=1)
    covariance = counts.hits.sum(axis=1) * rows - (counts.actual * counts.predicted).sum(axis=1)
    actual_spread = rows**2 - (counts.actual**2).sum(axis=1)
    predicted_spread = rows**2 - (counts.predicted**2).sum(axis=1)
    return _divide(covariance, np.sqrt(actual_spread * predicted_spread))


METRICS = Table(
    "metric",
    {
        "accuracy": Metric(_accuracy, _accuracy_of_counts, wilson_interval),
        "f1": Metric(_f1, _f1_of_counts, bootstrap_interval),
        "matthews": Metric(_matthews, _matthews_of_counts, bootstrap_interval),
    },
)


def _aligned(
    label_ids: Sequence[int] | IntArray, *answers: Sequence[int] | IntArray
) -> tuple[IntArray, list[IntArray]]:
    truth = np.asarray(label_ids, dtype=np.int64)
    columns = [np.asarray(column, dtype=np.int64) for column in answers]
    if not len(truth):
        raise DataError("no rows to score: the split is empty. Give at least one labelled example.")
    for column in columns:
        if column.shape != truth.shape:
            raise DataError(
                f"{len(truth)} labels and predictions of shape {column.shape} cannot be compared: "
                "there must be one prediction a row, in the order of the labels."
            )
    return truth, columns


def _labels_in(label_count: int | None, *columns: IntArray) -> int:
    """Return how many labels there are, at least 2; raise DataError for ids beyond that."""
    occurring = max(2, *(int(column.max()) + 1 for column in columns))
    labels = max(2, label_count or occurring)
    lowest = min(int(column.min()) for column in columns)
    if occurring > labels or lowest < 0:
        raise DataError(
            f"label ids from {lowest} to {occurring - 1} do not fit a task of {labels} labels: "
            f"ids run from 0 to {labels - 1}. Compare models of the same task."
        )
    return labels


def _divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
