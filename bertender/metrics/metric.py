"""Metric: a score of predictions with a 95 % interval, paired changes, and scores by label.

Resampling rows with replacement and counting the draws of each is the same as drawing these counts
from a multinomial, so a bootstrap here draws counts and never touches the rows again.

Models with several heads have scores for one head, named HEAD:METRIC, and means over heads, named
HEAD:METRIC+HEAD:METRIC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import DataError

NO_LABEL = -100
"""Target of an example or token without a label."""


class HeadTargets(tuple[Any, ...]):
    """A target for each head of a model with several; or their labels, as in a file."""


def is_labelled(labels: Any) -> bool:
    """Return whether an example is labelled, given its target or its value in the label column.

    An empty set is a label. With several heads, a label for one head is enough.
    """
    if isinstance(labels, HeadTargets):
        return any(map(is_labelled, labels))
    values = np.asarray(labels)
    if values.dtype.kind == "U":
        return True
    if values.dtype.kind == "f":
        return not np.isnan(values).any()
    return not values.size or bool((values != NO_LABEL).any())


IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows: TypeAlias = Sequence[Any] | IntArray
"""Labels of rows, or predictions for them."""

POINTS = 100.0
"""A metric point is a hundredth of the metric."""
CONFIDENCE = 0.95
RESAMPLES = 1000


class Score(Record):
    """A metric's value on n rows, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    n: int
    undefined: str | None = Field(
        None, description="why the metric says nothing about these rows, where its value is 0"
    )


class Change(Record):
    """Candidate minus reference on the same rows, in metric points, with its 95 % interval."""

    value: float = Field(description="in points: 1.0 is a hundredth of the metric")
    low: float
    high: float


@dataclass(frozen=True)
class LabelSet:
    """The labels of a task, as far as known."""

    count: int | None = None
    """Number of labels; None counts those that occur."""
    names: Sequence[str] = ()


UNKNOWN = LabelSet()


class Metric(ABC):
    """A row of METRICS: a score where more is better."""

    only_shown: str = ""
    """Why the metric does not choose a model; empty if it may."""
    reads_logits: bool = False
    """Whether predictions are the logits of the rows, (rows, labels), instead of labels."""

    def chance(self, labels: int) -> float | None:
        """Return the score of a guess; None if it depends on the shares of the labels."""
        return None

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        """Return why the score is undefined for some rows; None if it is defined."""
        return None

    def count(self, label_ids: Rows, known: LabelSet) -> int:
        """Return how many of the rows are scored."""
        return len(label_ids)

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        """Return the value and its interval."""
        (value,), (draws,) = self.resampled(label_ids, [predictions], known, seed)
        return value, *percentiles(draws)

    @abstractmethod
    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        """Return the value for each model's predictions, and its resampled values (resamples,)."""


class RowsMetric(Metric):
    """A metric that can be computed from the number of draws of each row."""

    @abstractmethod
    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[Any, Any]]:
        """Return truth and predictions of each model as arrays."""

    @abstractmethod
    def of_draws(self, truth: Any, predicted: Any, draws: FloatArray) -> FloatArray:
        """Return the value of each resample (resamples,), given how often each draws each row
        (resamples, rows)."""

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        check_aligned(label_ids, predictions)
        models = self.prepared(label_ids, predictions, known)
        whole, draws = np.ones((1, len(label_ids))), drawn(len(label_ids), seed)
        values = [float(self.of_draws(*each, whole)[0]) for each in models]
        return values, [self.of_draws(*each, draws) for each in models]


class OneOrSeveral(Metric):
    """A score that is defined differently for one label per row and for several.

    Args:
        one: the metric for rows with one label.
        several: the metric for rows with a set of labels.
    """

    def __init__(self, one: Metric, several: Metric) -> None:
        self.one = one
        self.several = several

    def of(self, label_ids: Rows) -> Metric:
        """Return the metric for the given rows."""
        return self.several if len(label_ids) and np.ndim(label_ids[0]) else self.one

    def chance(self, labels: int) -> float | None:
        return self.one.chance(labels)

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        return self.of(label_ids).undefined(label_ids, predictions, known)

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        return self.of(label_ids).score(label_ids, predictions, known, seed)

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        return self.of(label_ids).resampled(label_ids, predictions, known, seed)


def named(number: int, known: LabelSet) -> str:
    """Return the name of a label for a message."""
    return repr(known.names[number]) if number < len(known.names) else str(number)


def percentiles(values: FloatArray) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def drawn(rows: int, seed: int) -> FloatArray:
    """Return how often each resample draws each row, (resamples, rows)."""
    chances = np.full(rows, 1 / rows)
    return np.random.default_rng(seed).multinomial(rows, chances, RESAMPLES).astype(np.float64)


def divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return quotients, 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def check_aligned(label_ids: Rows, predictions: Sequence[Rows]) -> None:
    """Raise DataError if there are no rows, or not one prediction per row."""
    if not len(label_ids):
        raise DataError("no rows to score: the split is empty. Give at least one labelled example.")
    for each in predictions:
        if len(each) != len(label_ids):
            raise DataError(
                f"{len(label_ids)} labels and {len(each)} predictions cannot be compared: there "
                "must be one prediction a row, in the order of the labels."
            )


Parts = Set[tuple[str, Any]]
"""Parts of an answer: each a label, and a position if an answer has several."""


class LabelScore(Record):
    """Scores of one label. Undefined scores are None."""

    precision: float | None = Field(description="None where it is never predicted")
    recall: float | None = Field(description="None where no row has it")
    f1: float | None = Field(description="None where it is neither predicted nor there")
    actual: int = Field(description="how often it is there")
    predicted: int = Field(description="how often it is predicted")


class AllScores(Record):
    """All scores of a model for its kind of problem, and the scores by label."""

    scores: tuple[Score, ...] = Field(description="the metrics of the problem type, in its order")
    by_label: dict[str, LabelScore] = Field(
        {},
        description="of each label, or type of entity, in the order of the labels; none of numbers",
    )

    def of(self, metric: str) -> Score:
        """Return the score by one of the metrics."""
        return next(each for each in self.scores if each.metric == metric)


def label_scores(
    truth: Iterable[Parts], predicted: Iterable[Parts], order: Sequence[str]
) -> dict[str, LabelScore]:
    """Return the scores of each label.

    Args:
        truth: the parts of each row's true answer.
        predicted: the parts of each row's prediction.
        order: labels to list first in any case; others follow alphabetically.
    """
    actual, found, hits = Counter[str](), Counter[str](), Counter[str]()
    for true, own in zip(truth, predicted, strict=True):
        actual.update(label for label, _ in true)
        found.update(label for label, _ in own)
        hits.update(label for label, _ in true & own)
    names = dict.fromkeys([*order, *sorted({*actual, *found})])
    return {
        name: LabelScore(
            precision=_share(hits[name], found[name]),
            recall=_share(hits[name], actual[name]),
            f1=_share(2 * hits[name], found[name] + actual[name]),
            actual=actual[name],
            predicted=found[name],
        )
        for name in names
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


OF_HEAD = ":"
"""Separator between the name of a head and its kind, labels or metrics."""
AND = "+"


def of_one_head(metric: str, head: str) -> str | None:
    """Return the metric of one head in the name of a mean; None if the mean has none."""
    start = f"{head}{OF_HEAD}"
    own = (part.removeprefix(start) for part in metric.split(AND) if part.startswith(start))
    return next(own, None)


def labels_of_head(labels: Sequence[str], head: str) -> tuple[str, ...]:
    """Return the labels of one head without its name, given all labels."""
    start = f"{head}{OF_HEAD}"
    return tuple(label.removeprefix(start) for label in labels if label.startswith(start))


class OfHead(Metric):
    """A score of one head, on the rows that have a label for it.

    Args:
        head: its name, the prefix of its label names.
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
        """Return truth and predictions for the rows that have a label for the head."""
        heads = [*dict.fromkeys(name.partition(OF_HEAD)[0] for name in known.names)]
        place, names = heads.index(self.head), labels_of_head(known.names, self.head)
        rows = [row for row, true in enumerate(label_ids) if is_labelled(true[place])]
        truth, *own = ([values[row][place] for row in rows] for values in (label_ids, *predictions))
        return truth, own, LabelSet(len(names), names)


class MeanOfHeads(Metric):
    """The mean of scores of several heads. The interval assumes independent errors.

    Args:
        metrics: metrics of the heads.
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
