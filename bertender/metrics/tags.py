"""Scores of taggers: F1 of whole entities, or accuracy over words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bertender.core.errors import DataError
from bertender.metrics.metric import (
    FloatArray,
    IntArray,
    LabelSet,
    Metric,
    Rows,
    RowsMetric,
    Score,
    divide,
    drawn,
    percentiles,
)

OUTSIDE = "O"
SCHEME_TAG = re.compile(f"{OUTSIDE}|[BIESLUM](-.+)?", re.DOTALL)
"""A tag of BIO, or of the schemes IOBES, BILOU or BMES in imported taggers."""
SAME_AS = {"L": "E", "U": "S", "M": "I"}
"""Prefixes of BILOU and BMES -> those of IOBES."""

Sentence = Sequence[str]
"""The tags of a sentence."""

EntityCounts = FloatArray
"""Numbers of correct, true and predicted entities, (sentences, 3)."""


class EntityF1(Metric):
    """F1 of whole entities, with a bootstrap interval over sentences.

    An entity is correct if its type and its first and last word are (Tjong Kim Sang and De Meulder
    2003, arXiv cs/0306050). The value is seqeval's, which reads tags like CoNLL's script. If tags
    are plain, such as parts of speech, each word whose tag is not O counts as one entity.
    Predictions are tag numbers, one for each word of a sentence.
    """

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if not all(map(SCHEME_TAG.fullmatch, known.names)):
            return "its tags mark no entities"
        outside = known.names.index(OUTSIDE) if OUTSIDE in known.names else None
        if any(number != outside for numbers in label_ids for number in numbers):
            return None
        return f"every word is {OUTSIDE}"

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
        whole, draws = np.ones((1, len(truth))), drawn(len(truth), seed)
        values = [float(_f1_of_sums(whole @ each)[0]) for each in counts]
        return values, [_f1_of_sums(draws @ each) for each in counts]


class TagAccuracy(RowsMetric):
    """The share of words with the right tag, with a bootstrap interval over sentences.

    It is the score for plain tags, such as parts of speech. Words of a sentence are not
    independent, so an interval over words would be too narrow.
    """

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[FloatArray, FloatArray]]:
        """Return the numbers of words and of correct words of each sentence, (sentences,)."""
        truth = [np.asarray(each) for each in label_ids]
        words = np.array([len(each) for each in truth], dtype=np.float64)
        return [
            (words, np.array([_hits(*pair) for pair in zip(truth, own, strict=True)]))
            for own in predictions
        ]

    def of_draws(self, truth: FloatArray, predicted: FloatArray, draws: FloatArray) -> FloatArray:
        return divide(draws @ predicted, draws @ truth)


def _hits(truth: IntArray, predicted: Sequence[int]) -> float:
    if len(truth) != len(predicted):
        raise DataError(
            f"{len(predicted)} predicted tags for {len(truth)} words: there must be one for each."
        )
    return float((truth == np.asarray(predicted)).sum())


def entity_f1(truth: Sequence[Sentence], predicted: Sequence[Sentence], *, seed: int = 0) -> Score:
    """Return the F1 of entities over all sentences, with a bootstrap interval over sentences.

    Args:
        truth: the tags of each sentence.
        predicted: the predicted tags of each sentence.
        seed: seed of the bootstrap.

    Raises:
        DataError: there are no sentences, or the number of tags and words differ.
    """
    if not truth or [len(tags) for tags in truth] != [len(tags) for tags in predicted]:
        raise DataError(
            f"{len(predicted)} predicted sentences cannot be scored against {len(truth)}: there "
            "must be some, and one tag for each of their words."
        )
    from seqeval.metrics import f1_score

    value = f1_score(list(map(list, truth)), list(map(list, predicted)), zero_division=0)
    counts = entity_counts(truth, predicted)
    low, high = percentiles(_f1_of_sums(drawn(len(counts), seed) @ counts))
    return Score(metric="entity_f1", value=float(value), low=low, high=high, n=len(truth))


def entities(tags: Sequence[int], names: Sequence[str]) -> set[tuple[str, tuple[int, int]]]:
    """Return the type and the first and last word of each entity of a sentence.

    Args:
        tags: the number of each word's tag.
        names: names of the tags.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    (sentence,) = _tags([tags], names)
    return {(kind, (first, last)) for kind, first, last in get_entities(sentence)}


def entity_counts(truth: Sequence[Sentence], predicted: Sequence[Sentence]) -> EntityCounts:
    """Return the numbers of correct, true and predicted entities in each sentence, (sentences,
    3)."""
    from seqeval.metrics.sequence_labeling import get_entities

    pairs = [
        (set(get_entities(list(tags))), set(get_entities(list(ours))))
        for tags, ours in zip(truth, predicted, strict=True)
    ]
    return np.array([(len(a & b), len(a), len(b)) for a, b in pairs], dtype=np.float64)


def _tags(sentences: Sequence[Sequence[int]] | IntArray, names: Sequence[str]) -> list[list[str]]:
    """Return the names of tags; with plain tags, each word is an entity of its own."""
    if all(map(SCHEME_TAG.fullmatch, names)):  # `get_entities` reads B, I, E and S
        names = [f"{SAME_AS.get(name[0], name[0])}{name[1:]}" for name in names]
    else:
        names = [name if name == OUTSIDE else f"B-{name}" for name in names]
    return [[names[number] for number in numbers] for numbers in sentences]


def _f1_of_sums(counts: EntityCounts) -> FloatArray:
    """Return the F1 of each row of sums, (rows, 3) -> (rows,)."""
    right, true, predicted = counts.T
    shares = np.divide(2 * right, true + predicted, out=np.zeros_like(right), where=right > 0)
    return np.asarray(shares)
