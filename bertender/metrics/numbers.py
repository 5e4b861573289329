"""Scores of predicted numbers and of vectors, with a bootstrap interval over rows.

A prediction for pairs of texts has the cosine of each pair, and the rank of its second text among
those of all pairs. Pairs that belong together, without a similarity, have the target infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bertender.metrics.metric import (
    FloatArray,
    LabelSet,
    Rows,
    RowsMetric,
)

LEAST = 1e-9
"""Smallest standard deviation of numbers scaled to 1; less is rounding."""


class NumberMetric(RowsMetric):
    """A score for one predicted number per row."""

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        truth = np.asarray(label_ids, dtype=np.float64)
        return [(truth, np.asarray(each, dtype=np.float64)) for each in predictions]


class Pearson(NumberMetric):
    """Pearson's correlation; 0 if truth or prediction is constant."""

    def chance(self, labels: int) -> float | None:
        return 0.0

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        for rows, said in ((label_ids, "all rows have"), (predictions, "all predictions are")):
            if np.ptp(np.asarray(rows, dtype=np.float64)) == 0:
                return f"{said} the number {float(rows[0]):.4g}"
        return None

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        rows = draws.sum(axis=1)
        # shifted to 0 and scaled, so that squares lose no digits
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


def _standard(numbers: FloatArray) -> FloatArray:
    return np.asarray((numbers - numbers.mean()) / (numbers.std() or 1.0))


class Spearman(Pearson):
    """Spearman's correlation: Pearson's for ranks. Resamples keep the ranks over all rows."""

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        from scipy.stats import rankdata

        return super().of_draws(rankdata(truth), rankdata(predicted), draws)


class MeanAbsoluteError(NumberMetric):
    """The mean distance from the true numbers, in their unit."""

    only_shown = "less is better, and it is in the unit of the data"

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        return np.asarray(draws @ np.abs(truth - predicted) / draws.sum(axis=1))


class CosineSpearman(Spearman):
    """Spearman's correlation of cosines with the similarities of the pairs."""

    def chance(self, labels: int) -> None:
        return None

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if any(map(math.isinf, label_ids)):
            return "the pairs have no numbers. recall_at_1 and recall_at_10 need none"
        return super().undefined(label_ids, [cosine for cosine, _ in predictions], known)

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        truth = np.nan_to_num(np.asarray(label_ids, dtype=np.float64), posinf=0.0)
        return [(truth, np.asarray(each)[:, 0]) for each in predictions]


class Recall(RowsMetric):
    """The share of pairs whose second text is among the `most` nearest to the first text."""

    def __init__(self, most: int) -> None:
        self.most = most

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if all(map(math.isinf, label_ids)):
            return None
        return "the pairs have numbers, low ones too. cosine_spearman reads them"

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        truth = np.asarray(label_ids, dtype=np.float64)
        return [(truth, np.asarray(each)[:, 1]) for each in predictions]

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        return np.asarray(draws @ (predicted <= self.most) / draws.sum(axis=1))
