"""Scores of models with several heads: of one head, and the mean over heads.

A metric of a head is called HEAD:METRIC, and a mean HEAD:METRIC+HEAD:METRIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertender.metrics.metric import FloatArray, LabelSet, Metric, Rows
from bertender.metrics.targets import is_labelled

OF_HEAD = ":"
"""Between the name of a head and its kind, its labels or its metrics."""
AND = "+"


def of_one_head(metric: str, head: str) -> str | None:
    """Return the metric of one head in the name of a mean; None where the mean has none of it."""
    start = f"{head}{OF_HEAD}"
    own = (part.removeprefix(start) for part in metric.split(AND) if part.startswith(start))
    return next(own, None)


def labels_of_head(labels: Sequence[str], head: str) -> tuple[str, ...]:
    """Return the labels of one head without its name, given those of all."""
    start = f"{head}{OF_HEAD}"
    return tuple(label.removeprefix(start) for label in labels if label.startswith(start))


class OfHead(Metric):
    """A score of one head, on the rows that have a label of it.

    Args:
        head: its name, with which the names of its labels begin.
        metric: the score.
    """

    def __init__(self, head: str, metric: Metric) -> None:
        self.head = head
        self.metric = metric
        self.only_shown = metric.only_shown

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        truth, (own,), labels = self._of_head(label_ids, [predictions], known)
        if not truth:
            return f"no row has a label of {self.head}"
        return self.metric.undefined(truth, own, labels)

    def count(self, label_ids: Rows, known: LabelSet) -> int:
        return len(self._of_head(label_ids, [], known)[0])

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        truth, (own,), labels = self._of_head(label_ids, [predictions], known)
        return self.metric.score(truth, own, labels, seed) if truth else (0.0, 0.0, 0.0)

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        truth, own, labels = self._of_head(label_ids, predictions, known)
        if not truth:
            return [0.0] * len(own), [np.zeros(1)] * len(own)
        return self.metric.resampled(truth, own, labels, seed)

    def _of_head(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> tuple[list[Any], list[list[Any]], LabelSet]:
        """Return truth and predictions of the rows that have a label of the head."""
        heads = [*dict.fromkeys(name.partition(OF_HEAD)[0] for name in known.names)]
        place, names = heads.index(self.head), labels_of_head(known.names, self.head)
        rows = [row for row, true in enumerate(label_ids) if is_labelled(true[place])]
        truth, *own = ([values[row][place] for row in rows] for values in (label_ids, *predictions))
        return truth, own, LabelSet(len(names), names)


class MeanOfHeads(Metric):
    """The mean of scores of several heads. For its interval, errors of heads are independent.

    Args:
        metrics: of the heads.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = tuple(metrics)
        self.only_shown = next((each.only_shown for each in metrics if each.only_shown), "")

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        found = (each.undefined(label_ids, predictions, known) for each in self.metrics)
        return next(filter(None, found), None)

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        values, draws = zip(
            *(each.resampled(label_ids, predictions, known, seed) for each in self.metrics),
            strict=True,
        )
        return (
            [float(np.mean(own)) for own in zip(*values, strict=True)],
            [np.mean(np.broadcast_arrays(*own), axis=0) for own in zip(*draws, strict=True)],
        )
