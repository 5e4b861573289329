"""A tagger's answers over a whole split, and the score of them."""

from __future__ import annotations

from bertender.metrics.scores import Score
from bertender.models.words import Tagger
from bertender.tasks.entities import entity_f1
from bertender.tasks.tagging import OUTSIDE, Sentence, TaggedSplit

__all__ = ["evaluate_tagger"]


def evaluate_tagger(tagger: Tagger, split: TaggedSplit) -> tuple[Score, tuple[Sentence, ...]]:
    """Return the tagger's entity F1 on a split, and its tags.

    A word that it does not see is outside of every entity.
    """
    answers = tuple(
        tuple(OUTSIDE if number is None else tagger.labels[number] for number in numbers)
        for numbers in tagger.tag(split.sentences)
    )
    truth = [tuple(tagger.labels[number] for number in numbers) for numbers in split.tag_ids]
    return entity_f1(truth, answers), answers
