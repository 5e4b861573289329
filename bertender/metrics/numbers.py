"""Scores of predicted numbers, of vectors and of rankings, with a bootstrap interval over rows.

A prediction of vectors is, by pairs of texts, the cosine of a pair, and the rank of its second text
among those of all pairs. Pairs whose texts belong together, without a number, have the number
infinity.

A prediction of rankings is the score of each passage of a query. Targets are the relevances of the
passages, 0 for none. Passages are ranked by falling scores, equal ones in the order in which they
came.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.metrics.metric import (
    FloatArray,
    LabelSet,
    Rows,
    RowsMetric,
    divide,
)


class NumberMetric(RowsMetric):
    """A score of one predicted number a row."""

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        truth = np.asarray(label_ids, dtype=np.float64)
        return [(truth, np.asarray(each, dtype=np.float64)) for each in predictions]


class Pearson(NumberMetric):
    """Pearson's correlation; 0 where one of both is the same in all rows."""

    def chance(self, labels: int) -> float | None:
        return 0.0

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        for rows, said in ((label_ids, "all rows have"), (predictions, "all predictions are")):
            if np.ptp(np.asarray(rows, dtype=np.float64)) == 0:
                return f"{said} the number {float(rows[0]):.4g}"
        return None

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
    """The mean distance of the numbers from the true ones, in their unit."""

    only_shown = "less is better, and it is in the unit of the data"

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        return np.asarray(draws @ np.abs(truth - predicted) / draws.sum(axis=1))


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


UNRANKED = "every query has passages of one relevance alone: any order of them is right"


def ranked(scores: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the places of passages, the best first, given their scores (passages,)."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")


class RankingMetric(RowsMetric):
    """The mean over queries of how well their passages are ranked.

    Queries without a relevant passage are left out: no order of theirs is better than another.
    """

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if any(len(set(relevances)) > 1 for relevances in label_ids):
            return None
        return UNRANKED

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Return which queries count, and how well each model ranks their passages."""
        truth = [np.asarray(each, dtype=np.float64) for each in label_ids]
        counted = np.array([float(each.max(initial=0.0) > 0) for each in truth])
        return [(counted, self._values(truth, each)) for each in predictions]

    def of_draws(self, truth: FloatArray, predicted: Any, draws: FloatArray) -> FloatArray:
        return divide(draws @ (truth * predicted), draws @ truth)

    @abstractmethod
    def of_query(self, relevances: FloatArray) -> float:
        """Return how good a ranking is, given the relevances in its order; one is above 0."""

    def _values(self, truth: Sequence[FloatArray], scores: Rows) -> FloatArray:
        pairs = zip(truth, scores, strict=True)
        return np.array(
            [self.of_query(own[ranked(each)]) if own.max() > 0 else 0.0 for own, each in pairs]
        )


class Ndcg(RankingMetric):
    """Normalised discounted cumulative gain of the first passages.

    Järvelin and Kekäläinen 2002, with the gains 2^relevance - 1 of Burges et al. 2005 and a
    discount of log2(1 + rank).
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def of_query(self, relevances: FloatArray) -> float:
        return self._gain(relevances) / self._gain(np.sort(relevances)[::-1])

    def _gain(self, relevances: FloatArray) -> float:
        first = relevances[: self.most]
        return float(((2.0**first - 1) / np.log2(2 + np.arange(len(first)))).sum())


class ReciprocalRank(RankingMetric):
    """One over the rank of the first relevant passage."""

    def of_query(self, relevances: FloatArray) -> float:
        return 1 / (1 + int((relevances > 0).argmax()))


class PassageRecall(RankingMetric):
    """The share of the relevant passages that are among the first."""

    def __init__(self, most: int) -> None:
        self.most = most

    def of_query(self, relevances: FloatArray) -> float:
        relevant = relevances > 0
        return float(relevant[: self.most].sum() / relevant.sum())
