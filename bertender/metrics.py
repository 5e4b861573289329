"""METRICS: scores, and paired changes of scores, each with a 95 % interval.

The values are scikit-learn's and seqeval's, the intervals Wilson's or a bootstrap's. These
libraries are imported where they compute: records and settings name metrics without waiting.

Resampling rows with replacement and counting the resample's confusions is the same as drawing the
confusion counts from a multinomial, so a bootstrap here draws counts (resamples, cells) and never
touches the rows again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record, Table
from bertender.core.errors import DataError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows: TypeAlias = Sequence[Any] | IntArray
"""The labels of the rows, or predictions of them."""

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


class Change(Record):
    """Candidate minus reference on the same rows, in metric points, with its 95 % interval."""

    value: float = Field(description="in points: 1.0 is a hundredth of the metric")
    low: float
    high: float


@dataclass(frozen=True)
class LabelSet:
    """The labels of a task, as far as they are known."""

    count: int | None = None
    """None counts those that occur."""
    names: Sequence[str] = ()


UNKNOWN = LabelSet()


class Metric(ABC):
    """A row of METRICS."""

    @abstractmethod
    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        """Return the value and its interval."""

    @abstractmethod
    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        """Return the value of each model's predictions, and its values (resamples,)."""


def score(
    metric: str,
    label_ids: Rows,
    predictions: Rows,
    *,
    label_count: int | None = None,
    labels: Sequence[str] = (),
    seed: int = 0,
) -> Score:
    """Return a metric's value and 95 % interval.

    Args:
        metric: a name of METRICS.
        label_ids: the true label of each row.
        predictions: the predicted label of each row.
        label_count: how many labels the task has; None counts those that occur.
        labels: their names, for metrics that read names.
        seed: what the bootstrap draws from.

    Raises:
        UnknownNameError: there is no such metric.
        DataError: there are no rows, not as many predictions as labels, or ids of other labels.
    """
    value, low, high = METRICS[metric].score(
        label_ids, predictions, LabelSet(label_count, labels), seed
    )
    return Score(metric=metric, value=value, low=low, high=high, n=len(label_ids))


def paired_change(
    metric: str,
    label_ids: Rows,
    reference_predictions: Rows,
    candidate_predictions: Rows,
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> Change:
    """Return what the candidate gains over the reference, in points, by a paired bootstrap.

    Both models predict the same rows, so most of a score's uncertainty (which rows were drawn)
    is common to both and cancels: this interval is narrower than the two scores' intervals suggest.
    Other arguments and errors are those of `score`; `labels` are those of the task.
    """
    models = [reference_predictions, candidate_predictions]
    (before, after), (reference, candidate) = METRICS[metric].resampled(
        label_ids, models, labels, seed
    )
    low, high = percentiles(POINTS * (candidate - reference))
    return Change(value=POINTS * (after - before), low=low, high=high)


def percentiles(values: FloatArray) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class Counts:
    """Counts of many confusion matrices; each array is (resamples, labels).

    `hits` counts the rows of a label that are predicted right, `actual` the rows of a label,
    `predicted` the rows predicted as it.
    """

    hits: FloatArray
    actual: FloatArray
    predicted: FloatArray


def count_labels(actual: IntArray, predicted: IntArray, draws: FloatArray, labels: int) -> Counts:
    """Sum the draws (resamples, cells) by label; `actual` and `predicted` are (cells,)."""
    of_label = np.eye(labels)[actual]  # (cells, labels)
    as_label = np.eye(labels)[predicted]
    return Counts(
        hits=draws @ (of_label * as_label), actual=draws @ of_label, predicted=draws @ as_label
    )


class RowMetric(Metric):
    """A metric of one predicted label a row, with a bootstrap interval over rows."""

    @abstractmethod
    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        """Return the value over rows."""

    @abstractmethod
    def from_counts(self, counts: Counts) -> FloatArray:
        """Return the value of each resample, (resamples,)."""

    def interval(
        self, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
    ) -> tuple[float, float]:
        """Return the percentile interval over resampled rows."""
        cells, draws = _resampled_cells(np.stack([label_ids, predictions]), seed)
        return percentiles(self.from_counts(count_labels(cells[0], cells[1], draws, labels)))

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        truth, (predicted,) = _aligned(label_ids, predictions)
        labels = _labels_in(known.count, truth, predicted)
        low, high = self.interval(truth, predicted, labels, seed)
        return self.value(truth, predicted, labels), low, high

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        truth, predicted = _aligned(label_ids, *predictions)
        labels = _labels_in(known.count, truth, *predicted)
        cells, draws = _resampled_cells(np.stack([truth, *predicted]), seed)
        of_draws = [
            self.from_counts(count_labels(cells[0], own, draws, labels)) for own in cells[1:]
        ]
        return [self.value(truth, own, labels) for own in predicted], of_draws


class Accuracy(RowMetric):
    """The share of rows that are predicted right, with Wilson's interval."""

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        return float((label_ids == predictions).mean())

    def from_counts(self, counts: Counts) -> FloatArray:
        return _divide(counts.hits.sum(axis=1), counts.actual.sum(axis=1))

    def interval(
        self, label_ids: IntArray, predictions: IntArray, labels: int, seed: int
    ) -> tuple[float, float]:
        from scipy.stats import binomtest

        hits = int((label_ids == predictions).sum())
        interval = binomtest(hits, len(label_ids)).proportion_ci(CONFIDENCE, method="wilson")
        return float(interval.low), float(interval.high)


class F1(RowMetric):
    """F1 of label 1 for two labels; for more, the mean over the labels that occur."""

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        from sklearn.metrics import f1_score

        average = "binary" if labels <= 2 else "macro"
        return float(f1_score(label_ids, predictions, average=average, zero_division=0.0))

    def from_counts(self, counts: Counts) -> FloatArray:
        both = counts.actual + counts.predicted
        by_label = _divide(2 * counts.hits, both)  # (resamples, labels)
        if by_label.shape[1] <= 2:
            return by_label[:, 1]
        return _divide(by_label.sum(axis=1), (both > 0).sum(axis=1))


class Matthews(RowMetric):
    """Gorodkin's R_K, which for two labels is Matthews' coefficient; 0 where it is undefined."""

    def value(self, label_ids: IntArray, predictions: IntArray, labels: int) -> float:
        from sklearn.metrics import matthews_corrcoef

        return float(matthews_corrcoef(label_ids, predictions))

    def from_counts(self, counts: Counts) -> FloatArray:
        rows = counts.actual.sum(axis=1)
        covariance = counts.hits.sum(axis=1) * rows - (counts.actual * counts.predicted).sum(axis=1)
        actual_spread = rows**2 - (counts.actual**2).sum(axis=1)
        predicted_spread = rows**2 - (counts.predicted**2).sum(axis=1)
        return _divide(covariance, np.sqrt(actual_spread * predicted_spread))


def _resampled_cells(columns: IntArray, seed: int) -> tuple[IntArray, FloatArray]:
    """Return the distinct rows (columns, cells), and how often each resample drew them.

    Args:
        columns: labels and predictions (columns, rows).
        seed: what the draws come from.

    Returns:
        cells (columns, cells) and draws (resamples, cells).
    """
    cells, counts = np.unique(columns, axis=1, return_counts=True)
    rows = columns.shape[1]
    draws = np.random.default_rng(seed).multinomial(rows, counts / rows, size=RESAMPLES)
    return cells, draws.astype(np.float64)


def _aligned(label_ids: Rows, *predicted: Rows) -> tuple[IntArray, list[IntArray]]:
    """Return labels and predictions as arrays (rows,); DataError where they are not as many."""
    truth = np.asarray(label_ids, dtype=np.int64)
    columns = [np.asarray(column, dtype=np.int64) for column in predicted]
    if not len(truth):
        raise DataError("no rows to score: the split is empty. Give at least one labelled example.")
    for column in columns:
        if column.shape != truth.shape:
            raise DataError(
                f"{len(truth)} labels and predictions of shape {column.shape} cannot be compared: "
                "there must be one prediction a row, in the order of the labels."
            )
    return truth, columns


def _labels_in(label_count: int | None, *columns: IntArray) -> int:
    """Return how many labels there are, at least 2; raise DataError for ids beyond that."""
    occurring = max(2, *(int(column.max()) + 1 for column in columns))
    labels = max(2, label_count or occurring)
    lowest = min(int(column.min()) for column in columns)
    if occurring > labels or lowest < 0:
        raise DataError(
            f"label ids from {lowest} to {occurring - 1} do not fit a task of {labels} labels: "
            f"ids run from 0 to {labels - 1}. Compare models of the same task."
        )
    return labels


def _divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


OUTSIDE = "O"
SCHEME_TAG = re.compile(f"{OUTSIDE}|[BIESLUM](-.+)?", re.DOTALL)
"""A tag of BIO, or, of a finished tagger, of IOBES, BILOU or BMES."""
SAME_AS = {"L": "E", "U": "S", "M": "I"}
"""Prefixes of BILOU and BMES -> those of IOBES."""

Sentence = Sequence[str]
"""The tags of a sentence."""

EntityCounts = FloatArray
"""Entities that are right, true and predicted, (sentences, 3)."""


class EntityF1(Metric):
    """How many whole entities a tagger finds, with a bootstrap interval over sentences.

    An entity counts when its type and its first and last word are right (Tjong Kim Sang and De
    Meulder 2003, arXiv cs/0306050). The value is seqeval's, which reads tags as CoNLL's script
    does. Where tags are plain, such as parts of speech, each word whose tag is not O counts as one
    entity. Predictions are the numbers of tags, one for each word of a sentence.
    """

    def score(
        self, label_ids: Rows, predictions: Rows, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        truth, predicted = (_tags(numbers, known.names) for numbers in (label_ids, predictions))
        f1 = entity_f1(truth, predicted, seed=seed)
        return f1.value, f1.low, f1.high

    def resampled(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet, seed: int
    ) -> tuple[list[float], list[FloatArray]]:
        truth = _tags(label_ids, known.names)
        counts = [entity_counts(truth, _tags(each, known.names)) for each in predictions]
        whole, draws = np.ones((1, len(truth))), _drawn_sentences(len(truth), seed)
        values = [float(_f1_of_sums(whole @ each)[0]) for each in counts]
        return values, [_f1_of_sums(draws @ each) for each in counts]


def entity_f1(truth: Sequence[Sentence], predicted: Sequence[Sentence], *, seed: int = 0) -> Score:
    """Return the F1 of entities over all sentences, with a bootstrap interval over sentences.

    Args:
        truth: the tags of each sentence.
        predicted: a tagger's, one for each word.
        seed: what the bootstrap draws from.

    Raises:
        DataError: there are no sentences, or not one tag for each word.
    """
    if not truth or [len(tags) for tags in truth] != [len(tags) for tags in predicted]:
        raise DataError(
            f"{len(predicted)} predicted sentences cannot be scored against {len(truth)}: there "
            "must be some, and one tag for each of their words."
        )
    from seqeval.metrics import f1_score

    value = f1_score(list(map(list, truth)), list(map(list, predicted)), zero_division=0)
    counts = entity_counts(truth, predicted)
    low, high = percentiles(_f1_of_sums(_drawn_sentences(len(counts), seed) @ counts))
    return Score(metric="entity_f1", value=float(value), low=low, high=high, n=len(truth))


def entity_counts(truth: Sequence[Sentence], predicted: Sequence[Sentence]) -> EntityCounts:
    """Return the entities that are right, true and predicted in each sentence, (sentences, 3)."""
    from seqeval.metrics.sequence_labeling import get_entities

    pairs = [
        (set(get_entities(list(tags))), set(get_entities(list(ours))))
        for tags, ours in zip(truth, predicted, strict=True)
    ]
    return np.array([(len(a & b), len(a), len(b)) for a, b in pairs], dtype=np.float64)


def _tags(sentences: Sequence[Sequence[int]] | IntArray, names: Sequence[str]) -> list[list[str]]:
    """Return the names of tags; a word with a plain tag, of no scheme, is an entity of its own."""
    if all(map(SCHEME_TAG.fullmatch, names)):  # B, I, E and S are what `get_entities` reads
        names = [f"{SAME_AS.get(name[0], name[0])}{name[1:]}" for name in names]
    else:
        names = [name if name == OUTSIDE else f"B-{name}" for name in names]
    return [[names[number] for number in numbers] for numbers in sentences]


def _drawn_sentences(sentences: int, seed: int) -> FloatArray:
    """Return how often each resample draws each sentence, (resamples, sentences)."""
    chances = np.full(sentences, 1 / sentences)
    return np.random.default_rng(seed).multinomial(sentences, chances, size=RESAMPLES) * 1.0


def _f1_of_sums(counts: EntityCounts) -> FloatArray:
    """Return the F1 of each row of sums, (rows, 3) -> (rows,)."""
    right, true, predicted = counts.T
    shares = np.divide(2 * right, true + predicted, out=np.zeros_like(right), where=right > 0)
    return np.asarray(shares)


METRICS = Table[Metric](
    "metric",
    {"accuracy": Accuracy(), "f1": F1(), "matthews": Matthews(), "entity_f1": EntityF1()},
)
