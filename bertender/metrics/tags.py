"""Scores of taggers: F1 of whole entities, or accuracy over words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertender.core.errors import DataError
from bertender.metrics.metric import FloatArray, IntArray, LabelSet, Rows, RowsMetric, divide
from bertender.metrics.tag_schemes import OUTSIDE, Entity, are_entity_tags, entities_of

NO_TYPE = "_"
"""Type of entities whose tags are prefixes alone."""


class EntityF1(RowsMetric):
    """F1 of whole entities, with a bootstrap interval over sentences.

    An entity is correct if its type and its first and last word are (Tjong Kim Sang and De Meulder
    2003, arXiv cs/0306050). The value is seqeval's, which reads tags like CoNLL's script. If tags
    are plain, such as parts of speech, each word whose tag is not O counts as one entity.
    Predictions are tag numbers, one for each word of a sentence.
    """

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if not are_entity_tags(known.names):
            return "its tags mark no entities"
        outside = known.names.index(OUTSIDE) if OUTSIDE in known.names else None
        if any(number != outside for numbers in label_ids for number in numbers):
            return None
        return f"every word is {OUTSIDE}"

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[IntArray, IntArray]]:
        """Return the number of entities of each sentence, (sentences,), and those of correct and
        predicted ones, (sentences, 2)."""
        _check_words(label_ids, predictions)
        truth, *models = (
            [entities(tags, known.names) for tags in rows] for rows in (label_ids, *predictions)
        )
        counts = np.array([*map(len, truth)])
        return [
            (counts, np.array([(len(a & b), len(b)) for a, b in zip(truth, own, strict=True)]))
            for own in models
        ]

    def of_draws(self, truth: IntArray, predicted: IntArray, draws: FloatArray) -> FloatArray:
        correct, found = (draws @ predicted).T
        return divide(2 * correct, draws @ truth + found)


class TagAccuracy(RowsMetric):
    """The share of words with the right tag, with a bootstrap interval over sentences.

    It is the score for plain tags, such as parts of speech. Words of a sentence are not
    independent, so an interval over words would be too narrow.
    """

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[IntArray, IntArray]]:
        """Return the numbers of words and of correct words of each sentence, (sentences,)."""
        _check_words(label_ids, predictions)
        words = np.array([*map(len, label_ids)])
        return [
            (words, np.array([np.equal(a, b).sum() for a, b in zip(label_ids, own, strict=True)]))
            for own in predictions
        ]

    def of_draws(self, truth: IntArray, predicted: IntArray, draws: FloatArray) -> FloatArray:
        return divide(draws @ predicted, draws @ truth)


def _check_words(label_ids: Rows, predictions: Sequence[Rows]) -> None:
    """Raise DataError unless each word has one predicted tag."""
    for rows in predictions:
        for true, own in zip(label_ids, rows, strict=True):
            if len(true) != len(own):
                raise DataError(
                    f"{len(own)} predicted tags for {len(true)} words: there must be one for each."
                )


def entities(tags: Sequence[int], names: Sequence[str]) -> set[tuple[str, tuple[int, int]]]:
    """Return the type of each entity of a sentence, its first word and the one after its last; with
    plain tags, each word is an entity of its own.

    Args:
        tags: the number of each word's tag.
        names: names of the tags.
    """
    own = [names[number] for number in tags]
    if are_entity_tags(names):
        found = entities_of(own)
    else:
        found = [Entity(tag, word, word + 1) for word, tag in enumerate(own) if tag != OUTSIDE]
    return {(kind or NO_TYPE, (first, end)) for kind, first, end in found}
