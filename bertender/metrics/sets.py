"""Scores of predicted sets of labels, with a bootstrap interval over rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.metric import (
    FloatArray,
    LabelSet,
    Metric,
    Rows,
    check_aligned,
    divide,
    drawn,
    percentiles,
)

BoolArray = npt.NDArray[np.bool_]


class Sets(NamedTuple):
    """True and predicted sets, each (rows, labels)."""

    true: BoolArray
    predicted: BoolArray


class SetMetric(Metric):
    """A score of a predicted set of labels a row, each the numbers of its labels."""

    @abstractmethod
    def of_draws(self, sets: Sets, draws: FloatArray) -> FloatArray:
        """Return the value of each resample (resamples,), given how often each draws each row
        (resamples, rows)."""

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        (value,), (draws,) = self.resampled(label_ids, [predictions], known, seed)
        return value, *percentiles(draws)

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        check_aligned(label_ids, predictions)
        numbers = [number for each in (label_ids, *predictions) for own in each for number in own]
        labels = known.count or max(numbers, default=0) + 1
        if numbers and not 0 <= min(numbers) <= max(numbers) < labels:
            raise DataError(
                f"label ids from {min(numbers)} to {max(numbers)} do not fit a task of {labels} "
                f"labels: ids run from 0 to {labels - 1}. Compare models of the same task."
            )
        truth = _as_array(label_ids, labels)
        models = [Sets(truth, _as_array(each, labels)) for each in predictions]
        whole, draws = np.ones((1, len(truth))), drawn(len(truth), seed)
        values = [float(self.of_draws(each, whole)[0]) for each in models]
        return values, [self.of_draws(each, draws) for each in models]


def _as_array(sets: Rows, labels: int) -> BoolArray:
    array = np.zeros((len(sets), labels), dtype=bool)
    for row, own in enumerate(sets):
        array[row, list(own)] = True
    return array


def _f1(hits: npt.NDArray[Any], both: npt.NDArray[Any]) -> FloatArray:
    return divide(2.0 * hits, both * 1.0)


class MicroF1(SetMetric):
    """F1 over all labels of all rows together."""

    def of_draws(self, sets: Sets, draws: FloatArray) -> FloatArray:
        hits = (sets.true & sets.predicted).sum(axis=1)
        both = sets.true.sum(axis=1) + sets.predicted.sum(axis=1)
        return _f1(draws @ hits, draws @ both)


class MacroF1(SetMetric):
    """The mean over labels of each one's F1; 0 for a label that is nowhere."""

    def of_draws(self, sets: Sets, draws: FloatArray) -> FloatArray:
        hits = draws @ (sets.true & sets.predicted)
        both = draws @ sets.true + draws @ sets.predicted
        return np.asarray(_f1(hits, both).mean(axis=1))


class Jaccard(SetMetric):
    """The mean over rows of what both sets share of their union; 1 where both are empty."""

    def of_draws(self, sets: Sets, draws: FloatArray) -> FloatArray:
        shared = (sets.true & sets.predicted).sum(axis=1)
        union = (sets.true | sets.predicted).sum(axis=1)
        shares = np.where(union > 0, shared / np.maximum(union, 1), 1.0)
        return np.asarray(draws @ shares / draws.sum(axis=1))


class ExactMatch(SetMetric):
    """The share of rows whose set is right as a whole."""

    def of_draws(self, sets: Sets, draws: FloatArray) -> FloatArray:
        right = (sets.true == sets.predicted).all(axis=1)
        return np.asarray(draws @ right / draws.sum(axis=1))
