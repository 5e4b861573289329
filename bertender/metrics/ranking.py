"""Scores of rankings: a prediction has the score of each passage of a query.

Targets are the relevances of the passages, 0 for none. Passages are ranked by falling scores; those
with equal scores keep their order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.metrics.metric import FloatArray, LabelSet, Rows, RowsMetric, divide

UNRANKED = "every query has passages of one relevance alone: any order of them is right"


def ranked(scores: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the passages' indices, the best first, given their scores (passages,)."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")


class RankingMetric(RowsMetric):
    """The mean over queries of a score of their ranked passages.

    Queries without a relevant passage are left out, since all their orders are equally good.
    """

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if any(len(set(relevances)) > 1 for relevances in label_ids):
            return None
        return UNRANKED

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Return which queries count, and the score of each model's rankings."""
        truth = [np.asarray(each, dtype=np.float64) for each in label_ids]
        counted = np.array([float(each.max(initial=0.0) > 0) for each in truth])
        return [(counted, self._values(truth, each)) for each in predictions]

    def of_draws(self, truth: FloatArray, predicted: Any, draws: FloatArray) -> FloatArray:
        return divide(draws @ (truth * predicted), draws @ truth)

    @abstractmethod
    def of_query(self, relevances: FloatArray) -> float:
        """Return the score of a ranking, given the relevances in its order; at least one is above
        0."""

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
        """Return the gain as a share of 2^largest, which may be beyond any number."""
        first, largest = relevances[: self.most], relevances.max()
        gains = 2.0 ** (first - largest) - 2.0**-largest
        return float((gains / np.log2(2 + np.arange(len(first)))).sum())


class ReciprocalRank(RankingMetric):
    """One over the rank of the first relevant passage."""

    def of_query(self, relevances: FloatArray) -> float:
        return 1 / (1 + int((relevances > 0).argmax()))


class PassageRecall(RankingMetric):
    """The share of the relevant passages that are among the first passages."""

    def __init__(self, most: int) -> None:
        self.most = most

    def of_query(self, relevances: FloatArray) -> float:
        relevant = relevances > 0
        return float(relevant[: self.most].sum() / relevant.sum())
