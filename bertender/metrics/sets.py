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


class MacroF1(SetMetric):
    """The mean over labels of each one's F1; 0 for a label that is nowhere."""

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        hits = draws @ (truth & predicted)
        both = draws @ truth + draws @ predicted
        return np.asarray(_f1(hits, both).mean(axis=1))


class Jaccard(SetMetric):
    """The mean over rows of what both sets share of their union; 1 where both are empty."""

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        shared = (truth & predicted).sum(axis=1)
        union = (truth | predicted).sum(axis=1)
        shares = np.where(union > 0, shared / np.maximum(union, 1), 1.0)
        return np.asarray(draws @ shares / draws.sum(axis=1))


class ExactMatch(SetMetric):
    """The share of rows whose set is right as a whole."""

    def of_draws(self, truth: BoolArray, predicted: BoolArray, draws: FloatArray) -> FloatArray:
        right = (truth == predicted).all(axis=1)
        return np.asarray(draws @ right / draws.sum(axis=1))
