"""Scores of one predicted label a row; the values are scikit-learn's, which is imported there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertender.core.errors import DataError
from bertender.metrics.metric import (
    CONFIDENCE,
    RESAMPLES,
    FloatArray,
    IntArray,
    LabelSet,
    Metric,
    Rows,
    divide,
    named,
    percentiles,
)


@dataclass(frozen=True)
class Counts:
    """Counts of many confusion matrices; each array is (resamples, labels).

    `hits` counts the rows of a label that are predicted right, `actual` the rows of a label,
    `predicted` the rows predicted as it.
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
    """A metric of one predicted label a row, with a bootstrap interval over rows."""

    @abstractmethod
    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        """Return the value over rows."""

    @abstractmethod
    def from_counts(self, counts: Counts) -> FloatArray:
        """Return the value of each resample, (resamples,)."""

    def interval(
        self, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
    ) -> tuple[float, float]:
        """Return the percentile interval over resampled rows."""
        cells, draws = _resampled_cells(np.stack([label_ids, predictions]), seed)
        return percentiles(self.from_counts(count_labels(cells[0], cells[1], draws, labels)))

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        truth, (predicted,) = _aligned(label_ids, predictions)
        labels = _labels_in(known.count, truth, predicted)
        low, high = self.interval(truth, predicted, labels, seed)
        return self.value(truth, predicted, labels), low, high

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        truth, predicted = _aligned(label_ids, *predictions)
        labels = _labels_in(known.count, truth, *predicted)
        cells, draws = _resampled_cells(np.stack([truth, *predicted]), seed)
        of_draws = [
            self.from_counts(count_labels(cells[0], own, draws, labels)) for own in cells[1:]
        ]
        return [self.value(truth, own, labels) for own in predicted], of_draws


class Accuracy(RowMetric):
    """The share of rows that are predicted right, with Wilson's interval."""

    def chance(self, labels: int) -> float:
        return 1 / labels

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        return float((label_ids == predictions).mean())

    def from_counts(self, counts: Counts) -> FloatArray:
        return divide(counts.hits.sum(axis=1), counts.actual.sum(axis=1))

    def interval(
        self, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
    ) -> tuple[float, float]:
        from scipy.stats import binomtest

        hits = int((label_ids == predictions).sum())
        interval = binomtest(hits, len(label_ids)).proportion_ci(CONFIDENCE, method="wilson")
        return float(interval.low), float(interval.high)


class MacroF1(RowMetric):
    """The mean over the labels that occur of each one's F1."""

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        from sklearn.metrics import f1_score

        return float(f1_score(label_ids, predictions, average="macro", zero_division=0.0))

    def from_counts(self, counts: Counts) -> FloatArray:
        both = counts.actual + counts.predicted
        by_label = divide(2 * counts.hits, both)  # (resamples, labels)
        return divide(by_label.sum(axis=1), (both > 0).sum(axis=1))


class F1(MacroF1):
    """F1 of label 1 for two labels; for more, the mean over the labels that occur."""

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        from sklearn.metrics import f1_score

        if labels > 2:
            return super().value(label_ids, predictions, labels)
        return float(f1_score(label_ids, predictions, average="binary", zero_division=0.0))

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

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        from sklearn.metrics import matthews_corrcoef

        return float(matthews_corrcoef(label_ids, predictions))

    def from_counts(self, counts: Counts) -> FloatArray:
        rows = counts.actual.sum(axis=1)
        covariance = counts.hits.sum(axis=1) * rows - (counts.actual * counts.predicted).sum(axis=1)
        actual_spread = rows**2 - (counts.actual**2).sum(axis=1)
        predicted_spread = rows**2 - (counts.predicted**2).sum(axis=1)
        return divide(covariance, np.sqrt(actual_spread * predicted_spread))


def _resampled_cells(columns: IntArray, seed: int) -> tuple[IntArray, FloatArray]:
    """Return the distinct rows (columns, cells), and how often each resample drew them.

    Args:
        columns: labels and predictions (columns, rows).
        seed: what the draws come from.

    Returns:
        cells (columns, cells) and draws (resamples, cells).
    """
    cells, counts = np.unique(columns, axis=1, return_counts=True)
    rows = columns.shape[1]
    draws = np.random.default_rng(seed).multinomial(rows, counts / rows, size=RESAMPLES)
    return cells, draws.astype(np.float64)


def _aligned(label_ids: Rows, *predicted: Rows) -> tuple[IntArray, list[IntArray]]:
    """Return labels and predictions as arrays (rows,); DataError where they are not as many."""
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
