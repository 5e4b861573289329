"""Answers in a text, as SQuAD's script scores them: exact match and F1 of words.

Rajpurkar et al. 2016 (arXiv 1606.05250), section 6.1, and Rajpurkar et al. 2018 (arXiv 1806.03822)
for questions without an answer. Texts are compared in lower case, without punctuation, articles and
extra white space; of several true answers the nearest counts. Targets and predictions are tuples of
(text, start in the context); an empty tuple is no answer.
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertender.metrics.metric import FloatArray, LabelSet, Rows, RowsMetric, divide

Answers = Sequence[tuple[str, int]]
"""Texts, and the start of each in its context."""

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return a text normalised for comparing answers."""
    plain = text.lower().translate(WITHOUT_PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", plain).split())


def is_match(predicted: str, true: str) -> float:
    """Return 1 if two answers are the same text, else 0."""
    return float(normalised(predicted) == normalised(true))


def word_f1(predicted: str, true: str) -> float:
    """Return the F1 of the words of two answers; if one has none, 1 if neither has."""
    ours, theirs = normalised(predicted).split(), normalised(true).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs))


class AnswerMetric(RowsMetric):
    """The mean over questions of the predicted answer's similarity to the nearest true one.

    No answer is an empty text, which is correct for a question without an answer.
    """

    answered: bool | None = None
    """Whether to score only questions with an answer, or only those without; None for all."""

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if self.answered is None or any(bool(true) is self.answered for true in label_ids):
            return None
        return "no question has an answer" if self.answered else "every question has an answer"

    @abstractmethod
    def nearness(self, predicted: str, true: str) -> float:
        """Return the similarity of two answers, from 0 to 1."""

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Return which questions count, and the similarity of each model's predictions."""
        counted = np.array([self.answered in (None, bool(true)) for true in label_ids]) * 1.0
        return [
            (counted, np.array([self._best(*row) for row in zip(each, label_ids, strict=True)]))
            for each in predictions
        ]

    def of_draws(self, truth: FloatArray, predicted: Any, draws: FloatArray) -> FloatArray:
        return divide(draws @ (truth * predicted), draws @ truth)

    def _best(self, predicted: Answers, true: Answers) -> float:
        ours = predicted[0][0] if predicted else ""
        # SQuAD's script skips true answers that have only articles and punctuation
        usable = [text for text, _ in true if normalised(text)] or [""]
        return max(self.nearness(ours, text) for text in usable)


class AnswerF1(AnswerMetric):
    """F1 of the words of the answer."""

    def nearness(self, predicted: str, true: str) -> float:
        return word_f1(predicted, true)


class AnswerMatch(AnswerMetric):
    """Whether the answer is the same text."""

    def nearness(self, predicted: str, true: str) -> float:
        return is_match(predicted, true)


SOME_ALONE = "it is a score of some of the questions alone"


class AnsweredF1(AnswerF1):
    """F1 over the questions that have an answer."""

    only_shown = SOME_ALONE
    answered = True


class AnsweredMatch(AnswerMatch):
    """Exact match over the questions that have an answer."""

    only_shown = SOME_ALONE
    answered = True


class UnansweredAccuracy(AnswerMatch):
    """The share of unanswerable questions for which no answer is predicted."""

    only_shown = SOME_ALONE
    answered = False
