"""Scores of vectors, by pairs of texts: a prediction is the cosine of a pair, and the rank of its
second text among those of all pairs.

Pairs whose texts belong together, without a number, have the number infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bertender.metrics.metric import FloatArray, LabelSet, Rows, RowsMetric
from bertender.metrics.numbers import Spearman


class CosineSpearman(Spearman):
    """Spearman's correlation of cosines with the numbers of the pairs."""

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
    """The share of first texts of pairs whose second text is among the `most` nearest of all."""

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
