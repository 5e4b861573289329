"""Scores of predicted numbers, with a bootstrap interval over rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bertender.metrics.metric import (
    FloatArray,
    LabelSet,
    Metric,
    Rows,
    check_aligned,
    drawn,
    percentiles,
)


class NumberMetric(Metric):
    """A score of one predicted number a row."""

    @abstractmethod
    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
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
        truth = np.asarray(label_ids, dtype=np.float64)
        models = [np.asarray(each, dtype=np.float64) for each in predictions]
        whole, draws = np.ones((1, len(truth))), drawn(len(truth), seed)
        values = [float(self.of_draws(truth, each, whole)[0]) for each in models]
        return values, [self.of_draws(truth, each, draws) for each in models]


class Pearson(NumberMetric):
    """Pearson's correlation; 0 where one of both is the same in all rows."""

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        rows = draws.sum(axis=1)
        # shifted to 0 and scaled, so that the squares lose no digits
        first, second = (_standard(each) for each in (truth, predicted))
        means = [draws @ each / rows for each in (first, second)]
        covariance = draws @ (first * second) / rows - means[0] * means[1]
        variances = [
            draws @ np.square(each) / rows - np.square(mean)
            for each, mean in zip((first, second), means, strict=True)
        ]
        lengths = np.sqrt(np.maximum(variances[0], 0) * np.maximum(variances[1], 0))
        return np.asarray(
            np.divide(covariance, lengths, out=np.zeros_like(lengths), where=lengths > LEAST)
        )


LEAST = 1e-9
"""Of standard deviations, of numbers of which it is 1: less is rounding."""


def _standard(numbers: FloatArray) -> FloatArray:
    return np.asarray((numbers - numbers.mean()) / (numbers.std() or 1.0))


class Spearman(Pearson):
    """Spearman's correlation: Pearson's of ranks. Resamples keep the ranks of all rows."""

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        from scipy.stats import rankdata

        return super().of_draws(rankdata(truth), rankdata(predicted), draws)


class MeanAbsoluteError(NumberMetric):
    """The mean distance from the true number, in its unit."""

    more_is_better: ClassVar[bool] = False

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        return np.asarray(draws @ np.abs(truth - predicted) / draws.sum(axis=1))
