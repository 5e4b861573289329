"""Scores for rows with one predicted label or a predicted set of labels.

The values for single labels are those of scikit-learn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.metric import (
    CONFIDENCE,
    RESAMPLES,
    FloatArray,
    IntArray,
    LabelSet,
    Metric,
    Rows,
    RowsMetric,
    check_aligned,
    divide,
    named,
)


@dataclass(frozen=True)
class Counts:
    """Counts of many confusion matrices; each array is (resamples, labels).

    `hits` counts the correct rows of a label, `actual` the rows with the label, `predicted` the
    rows with that prediction.
    """

    hits: FloatArray
    actual: FloatArray
    predicted: FloatArray


def count_labels(actual: IntArray, predicted: IntArray, draws: FloatArray, labels: int) -> Counts:
    """Sum the draws (resamples, cells) by label; `actual` and `predicted` are (cells,)."""
    of_label = np.eye(labels)[actual]  # (cells, labels)
    as_label = np.eye(labels)[predicted]
    return Counts(
        hits=draws @ (of_label * as_label), actual=draws @ of_label, predicted=draws @ as_label
    )


class RowMetric(Metric):
    """A metric for one predicted label per row, with a bootstrap interval over rows."""

    @abstractmethod
    def from_counts(self, counts: Counts) -> FloatArray:
        """Return the value of each resample, (resamples,)."""

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        truth, predicted = _aligned(label_ids, *predictions)
        labels = _labels_in(known.count, truth, *predicted)
        rows, columns = len(truth), np.stack([truth, *predicted])
        cells, counts = np.unique(columns, axis=1, return_counts=True)  # the distinct rows
        draws = np.random.default_rng(seed).multinomial(rows, counts / rows, size=RESAMPLES)
        times = np.vstack([counts, draws]).astype(np.float64)  # (1 + resamples, cells)
        of_models = [
            self.from_counts(count_labels(cells[0], own, times, labels)) for own in cells[1:]
        ]
        return [float(own[0]) for own in of_models], [own[1:] for own in of_models]


class Accuracy(RowMetric):
    """The share of rows with a correct prediction, with Wilson's interval."""

    def chance(self, labels: int) -> float:
        return 1 / labels

    def from_counts(self, counts: Counts) -> FloatArray:
        return divide(counts.hits.sum(axis=1), counts.actual.sum(axis=1))

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        from scipy.stats import binomtest

        (value,), _ = self.resampled(label_ids, [predictions], known, seed)
        rows = len(label_ids)
        interval = binomtest(round(value * rows), rows).proportion_ci(CONFIDENCE, method="wilson")
        return value, float(interval.low), float(interval.high)


class MacroF1(RowMetric):
    """The mean F1 over the labels that occur."""

    def from_counts(self, counts: Counts) -> FloatArray:
        both = counts.actual + counts.predicted
        by_label = divide(2 * counts.hits, both)  # (resamples, labels)
        return divide(by_label.sum(axis=1), (both > 0).sum(axis=1))


class F1(MacroF1):
    """F1 of label 1 for two labels; for more, the mean F1 over the labels that occur."""

    def from_counts(self, counts: Counts) -> FloatArray:
        if counts.hits.shape[1] > 2:
            return super().from_counts(counts)
        return divide(2 * counts.hits, counts.actual + counts.predicted)[:, 1]

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        several = max(2, known.count or len({*map(int, label_ids)})) > 2
        return None if several or 1 in label_ids else f"no row is {named(1, known)}"


class Matthews(RowMetric):
    """Gorodkin's R_K, which for two labels is Matthews' coefficient; 0 where it is undefined."""

    def chance(self, labels: int) -> float:
        return 0.0

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        for rows, said in ((label_ids, "all rows are"), (predictions, "all predictions are")):
            if len({*map(int, rows)}) == 1:
                return f"{said} {named(int(rows[0]), known)}"
        return None

    def from_counts(self, counts: Counts) -> FloatArray:
        rows = counts.actual.sum(axis=1)
        covariance = counts.hits.sum(axis=1) * rows - (counts.actual * counts.predicted).sum(axis=1)
        actual_spread = rows**2 - (counts.actual**2).sum(axis=1)
        predicted_spread = rows**2 - (counts.predicted**2).sum(axis=1)
        return divide(covariance, np.sqrt(actual_spread * predicted_spread))


def _aligned(label_ids: Rows, *predicted: Rows) -> tuple[IntArray, list[IntArray]]:
    """Return labels and predictions as arrays (rows,); raise DataError if their numbers differ."""
    check_aligned(label_ids, predicted)
    truth, *columns = (np.asarray(each, dtype=np.int64) for each in (label_ids, *predicted))
    return truth, columns


def _labels_in(label_count: int | None, *columns: IntArray) -> int:
    """Return the number of labels, at least 2; raise DataError for ids beyond it."""
    occurring = max(2, *(int(column.max()) + 1 for column in columns))
    labels = max(2, label_count or occurring)
    lowest = min(int(column.min()) for column in columns)
    _check_ids(lowest, occurring - 1, labels)
    return labels


def _check_ids(lowest: int, highest: int, labels: int) -> None:
    """Raise DataError if ids are invalid for this number of labels."""
    if lowest < 0 or highest >= labels:
        raise DataError(
            f"label ids from {lowest} to {highest} do not fit a task of {labels} labels: ids run "
            f"from 0 to {labels - 1}. Compare models of the same task."
        )


BoolArray = npt.NDArray[np.bool_]


class SetMetric(RowsMetric):
    """A score for a predicted set of labels per row, each a tuple of label numbers.

    Truth and predictions are arrays (rows, labels).
    """

    needs_labels: bool = True
    """The score is undefined for rows that all have no labels."""

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        return None if not self.needs_labels or any(map(len, label_ids)) else "no row has a label"

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[BoolArray, BoolArray]]:
        numbers = [number for each in (label_ids, *predictions) for own in each for number in own]
        labels = known.count or max(numbers, default=0) + 1
        if numbers:
            _check_ids(min(numbers), max(numbers), labels)
        truth = _as_array(label_ids, labels)
        return [(truth, _as_array(each, labels)) for each in predictions]


def _as_array(sets: Rows, labels: int) -> BoolArray:
    array = np.zeros((len(sets), labels), dtype=bool)
    for row, own in enumerate(sets):
        array[row, list(own)] = True
    return array


def _f1(hits: npt.NDArray[Any], both: npt.NDArray[Any]) -> FloatArray:
    return divide(2.0 * hits, both * 1.0)


class MicroF1(SetMetric):
    """F1 over all labels of all rows together."""

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        hits = (truth & predicted).sum(axis=1)
        both = truth.sum(axis=1) + predicted.sum(axis=1)
        return _f1(draws @ hits, draws @ both)


class MacroF1Sets(SetMetric):
    """The mean F1 over the labels that occur."""

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        hits = draws @ (truth & predicted)
        both = draws @ truth + draws @ predicted
        return divide(_f1(hits, both).sum(axis=1), (both > 0).sum(axis=1))


class Jaccard(SetMetric):
    """The mean over rows of intersection over union; 1 if both sets are empty."""

    needs_labels = False

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        shared = (truth & predicted).sum(axis=1)
        union = (truth | predicted).sum(axis=1)
        shares = np.where(union > 0, shared / np.maximum(union, 1), 1.0)
        return np.asarray(draws @ shares / draws.sum(axis=1))


class ExactMatch(SetMetric):
    """The share of rows whose whole set is correct."""

    needs_labels = False

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        right = (truth == predicted).all(axis=1)
        return np.asarray(draws @ right / draws.sum(axis=1))


class MeanAveragePrecision(SetMetric):
    """The mean over the labels that occur of their average precision.

    This is scikit-learn's definition: the precision at each row that has the label, with rows
    ordered by the label's logit; rows with equal logits count together. No threshold is needed.
    """

    only_shown = "it judges the order of the scores, and not the labels that a model gives"
    reads_logits = True

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[BoolArray, Any]]:
        models = [np.asarray(each, dtype=np.float64) for each in predictions]
        return [(_as_array(label_ids, each.shape[1]), each) for each in models]

    def of_draws(self, truth: BoolArray, predicted: Any, draws: FloatArray) -> FloatArray:
        total, occurring = np.zeros(len(draws)), np.zeros(len(draws))
        for has, logits in zip(truth.T, predicted.T, strict=True):
            order = np.argsort(-logits, kind="stable")
            falling = logits[order]
            last = np.searchsorted(-falling, -falling, side="right") - 1  # of equal logits
            drawn = draws[:, order]
            found = drawn * has[order]
            precision = divide(np.cumsum(found, axis=1), np.cumsum(drawn, axis=1))[:, last]
            count = found.sum(axis=1)
            total += divide((found * precision).sum(axis=1), count)
            occurring += count > 0
        return divide(total, occurring)
