"""METRICS: scores and paired changes of scores, each with a 95 % interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bertender.core.config import Table
from bertender.core.errors import DataError
from bertender.metrics.entities import EntityF1
from bertender.metrics.resampling import (
    CONFIDENCE,
    POINTS,
    Change,
    Counts,
    LabelSet,
    Score,
    count_labels,
    mean_of_drawn,
    percentiles,
    resampled_cells,
)
from bertender.metrics.resampling import FloatArray as FloatArray_changes

# --- from bertender.metrics.scores
# METRICS: each with a 95 % interval.
#
# The values are scikit-learn's, the intervals Wilson's or a bootstrap's. Both libraries are
# imported
# where they compute: records and settings name metrics without waiting for them.

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows: TypeAlias = Sequence[Any] | IntArray
"""The labels of the rows, or predictions of them."""


class AnyMetric(Protocol):
    """A row of METRICS."""

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        """Return the value and its interval."""

    def resampled(
        self,
        label_ids: Rows,
        predictions: Sequence[Rows],
        known: LabelSet,
        seed: int,
    ) -> tuple[list[float], list[FloatArray]]:
        """Return the value of each model's predictions, and its values (resamples,)."""


@dataclass(frozen=True)
class Metric:
    """A metric of one prediction a row, a row of METRICS: the value over rows, the same over
    counts, and how its interval is made."""

    value: Callable[[IntArray, IntArray, int], float]
    from_counts: Callable[[Counts], FloatArray]
    interval: Callable[[Metric, IntArray, IntArray, int, int], tuple[float, float]]

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        """Return the value and its interval."""
        truth, (predicted,) = _aligned(label_ids, predictions)
        labels = _labels_in(known.count, truth, predicted)
        low, high = self.interval(self, truth, predicted, labels, seed)
        return self.value(truth, predicted, labels), low, high

    def resampled(
        self,
        label_ids: Rows,
        predictions: Sequence[Rows],
        known: LabelSet,
        seed: int,
    ) -> tuple[list[float], list[FloatArray]]:
        """Return the value of each model's predictions, and its values (resamples,)."""
        truth, predicted = _aligned(label_ids, *predictions)
        labels = _labels_in(known.count, truth, *predicted)
        cells, draws = resampled_cells(np.stack([truth, *predicted]), seed)
        of_draws = [
            self.from_counts(count_labels(cells[0], own, draws, labels)) for own in cells[1:]
        ]
        return [self.value(truth, own, labels) for own in predicted], of_draws


def score(
    metric: str,
    label_ids: Rows,
    predictions: Rows,
    *,
    label_count: int | None = None,
    labels: Sequence[str] = (),
    seed: int = 0,
) -> Score:
    """Return a metric's value and 95 % interval.

    Args:
        metric: a name of METRICS.
        label_ids: the true label of each row.
        predictions: the predicted label of each row.
        label_count: how many labels the task has; None counts those that occur.
        labels: their names, for metrics that read names.
        seed: what the bootstrap draws from.

    Raises:
        UnknownNameError: there is no such metric.
        DataError: there are no rows, not as many predictions as labels, or ids of other labels.
    """
    value, low, high = METRICS[metric].score(
        label_ids, predictions, LabelSet(label_count, labels), seed
    )
    return Score(metric=metric, value=value, low=low, high=high, n=len(label_ids))


def wilson_interval(
    metric: Metric, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
) -> tuple[float, float]:
    """Return Wilson's interval of a share of correct predictions."""
    from scipy.stats import binomtest

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
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(label_ids, predictions))


def _accuracy_of_counts(counts: Counts) -> FloatArray:
    return _divide(counts.hits.sum(axis=1), counts.actual.sum(axis=1))


def _f1(label_ids: IntArray, predictions: IntArray, labels: int) -> float:
    """F1 of label 1 for two labels; for more, the mean over the labels that occur."""
    from sklearn.metrics import f1_score

    average = "binary" if labels <= 2 else "macro"
    return float(f1_score(label_ids, predictions, average=average, zero_division=0.0))


def _f1_of_counts(counts: Counts) -> FloatArray:
    both = counts.actual + counts.predicted
    by_label = _divide(2 * counts.hits, both)  # (resamples, labels)
    if by_label.shape[1] <= 2:
        return by_label[:, 1]
    return _divide(by_label.sum(axis=1), (both > 0).sum(axis=1))


def _matthews(label_ids: IntArray, predictions: IntArray, labels: int) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(label_ids, predictions))


def _matthews_of_counts(counts: Counts) -> FloatArray:
    """Gorodkin's R_K, which for two labels is Matthews' coefficient; 0 where it is undefined."""
    rows = counts.actual.sum(axis=1)
    covariance = counts.hits.sum(axis=1) * rows - (counts.actual * counts.predicted).sum(axis=1)
    actual_spread = rows**2 - (counts.actual**2).sum(axis=1)
    predicted_spread = rows**2 - (counts.predicted**2).sum(axis=1)
    return _divide(covariance, np.sqrt(actual_spread * predicted_spread))


METRICS: Table[AnyMetric] = Table(
    "metric",
    {
        "accuracy": Metric(_accuracy, _accuracy_of_counts, wilson_interval),
        "f1": Metric(_f1, _f1_of_counts, bootstrap_interval),
        "matthews": Metric(_matthews, _matthews_of_counts, bootstrap_interval),
        "entity_f1": EntityF1(),
    },
    group="bertender.metrics",
)


def _aligned(
    label_ids: Sequence[int] | IntArray, *predicted: Sequence[int] | IntArray
) -> tuple[IntArray, list[IntArray]]:
    truth = np.asarray(label_ids, dtype=np.int64)
    columns = [np.asarray(column, dtype=np.int64) for column in predicted]
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


# --- from bertender.metrics.changes
# The honest difference of two models, or of two groups of models, by a paired bootstrap.

UNKNOWN = LabelSet()
"""Labels that are those which occur."""


def paired_change(
    metric: str,
    label_ids: Rows,
    reference_predictions: Rows,
    candidate_predictions: Rows,
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> Change:
    """Return what the candidate gains over the reference, in points, by a paired bootstrap.

    Both models predict the same rows, so most of a score's uncertainty (which rows were drawn)
    is common to both and cancels: this interval is narrower than the two scores' intervals suggest.
    Other arguments and errors are those of `score`; `labels` are those of the task.
    """
    return paired_change_of_means(
        metric,
        label_ids,
        [reference_predictions],
        [candidate_predictions],
        labels,
        seed=seed,
    )


def paired_change_of_means(
    metric: str,
    label_ids: Rows,
    references: Sequence[Rows],
    candidates: Sequence[Rows],
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> Change:
    """Return what the candidates gain over the references on average, by a paired bootstrap.

    Both are the predictions of several models on the same rows, such as one method's students of
    several seeds. Each resample draws rows, the same for all models, and models: so the interval
    holds what other texts and what other seeds would change. Of one model alone, the seed's part
    is unknown and not in it. Other arguments and errors are those of `score`.
    """
    return resampled_change(metric, label_ids, references, candidates, labels, seed=seed).change()


@dataclass(frozen=True)
class ResampledChange:
    """A paired change in points, and what it is in each resample."""

    value: float
    draws: FloatArray_changes
    """(resamples,)"""

    def change(self) -> Change:
        """Return the change with its interval."""
        low, high = percentiles(self.draws)
        return Change(value=self.value, low=low, high=high)


def resampled_change(
    metric: str,
    label_ids: Rows,
    references: Sequence[Rows],
    candidates: Sequence[Rows],
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> ResampledChange:
    """Return the change of `paired_change_of_means` with its resamples.

    Changes on several data sets can be averaged where each has a seed of its own.
    """
    values, resampled = METRICS[metric].resampled(
        label_ids, [*references, *candidates], labels, seed
    )
    first = len(references)
    generator = np.random.default_rng((seed, len(values)))
    means = [mean_of_drawn(part, generator) for part in (resampled[:first], resampled[first:])]
    value = float(np.mean(values[first:]) - np.mean(values[:first]))
    return ResampledChange(POINTS * value, POINTS * (means[1] - means[0]))


def mean_change(changes: Sequence[ResampledChange]) -> Change:
    """Return the average of changes on several data sets, which are drawn apart."""
    draws = np.mean([each.draws for each in changes], axis=0)
    return ResampledChange(float(np.mean([each.value for each in changes])), draws).change()
