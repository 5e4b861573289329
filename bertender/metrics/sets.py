"""Scores of predicted sets of labels, with a bootstrap interval over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.metric import FloatArray, LabelSet, Rows, RowsMetric, divide

BoolArray = npt.NDArray[np.bool_]


class SetMetric(RowsMetric):
    """A score of a predicted set of labels a row, each the numbers of its labels.

    Truth and predictions are arrays (rows, labels).
    """

    needs_labels: bool = True
    """Says nothing of rows that are all without labels."""

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        return None if not self.needs_labels or any(map(len, label_ids)) else "no row has a label"

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[BoolArray, BoolArray]]:
        numbers = [number for each in (label_ids, *predictions) for own in each for number in own]
        labels = known.count or max(numbers, default=0) + 1
        if numbers and not 0 <= min(numbers) <= max(numbers) < labels:
            raise DataError(
                f"label ids from {min(numbers)} to {max(numbers)} do not fit a task of {labels} "
                f"labels: ids run from 0 to {labels - 1}. Compare models of the same task."
            )
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
    """The mean over the labels that occur of each one's F1."""

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        hits = draws @ (truth & predicted)
        both = draws @ truth + draws @ predicted
        return divide(_f1(hits, both).sum(axis=1), (both > 0).sum(axis=1))


class Jaccard(SetMetric):
    """The mean over rows of what both sets share of their union; 1 where both are empty."""

    needs_labels = False

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        shared = (truth & predicted).sum(axis=1)
        union = (truth | predicted).sum(axis=1)
        shares = np.where(union > 0, shared / np.maximum(union, 1), 1.0)
        return np.asarray(draws @ shares / draws.sum(axis=1))


class ExactMatch(SetMetric):
    """The share of rows whose set is right as a whole."""

    needs_labels = False

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        right = (truth == predicted).all(axis=1)
        return np.asarray(draws @ right / draws.sum(axis=1))


class MeanAveragePrecision(SetMetric):
    """The mean over the labels that occur of each one's average precision.

    That is scikit-learn's: the precision at each row that has the label, where rows are ordered by
    the label's logit; rows of equal logits count together. No threshold enters it.
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
            last = np.searchsorted(-falling, -falling, side="right") - 1  # of equal ones
            drawn = draws[:, order]
            found = drawn * has[order]
            precision = divide(np.cumsum(found, axis=1), np.cumsum(drawn, axis=1))[:, last]
            count = found.sum(axis=1)
            total += divide((found * precision).sum(axis=1), count)
            occurring += count > 0
        return divide(total, occurring)
