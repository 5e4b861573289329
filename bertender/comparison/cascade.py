"""A cascade: a small model answers where it is confident, and a strong one elsewhere.

The threshold is the lowest at which the cascade scores no less than the strong model on the
validation texts. The held-out texts give its score, and the share of texts passed on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.comparison.accuracy import Answers
from bertender.comparison.records import CascadeFindings
from bertender.core.errors import ConfigError
from bertender.metrics import score
from bertender.metrics.metric import Score
from bertender.models.classifier import Classifier, in_label_order
from bertender.problems.problem import Problem
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch, keep_text

CANDIDATES = 100
"""Number of thresholds to try, quantiles of the small model's confidence."""

Numbers = npt.NDArray[np.float64]


class CascadePredictor:
    """Two classifiers as one predictor of texts.

    Args:
        small: answers each text first. strong: answers texts whose least probable decision is below
            the threshold.
        threshold: that probability.
    """

    def __init__(self, small: Classifier, strong: Classifier, threshold: float) -> None:
        self.small = small
        self.strong = strong
        self.threshold = threshold

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits of each text, (batch, labels), by the model that answers it."""
        examples = batch.examples
        found = self.small.outputs(examples)
        sure = self.small.problem.confidence(found, self.small.labels) >= self.threshold
        passed_on = np.flatnonzero(~sure).tolist()
        if passed_on:
            again = self.strong.outputs([examples[row] for row in passed_on])
            for row, own in zip(passed_on, again, strict=True):
                found[row] = own
        return np.concatenate([each.logits for each in found])


def as_classifier(name: str, small: Classifier, strong: Classifier, threshold: float) -> Classifier:
    """Return a cascade as a classifier."""
    strong = in_label_order(strong, small.labels)
    predictor = CascadePredictor(small, strong, threshold)
    parameters = small.parameters + strong.parameters
    return Classifier(name, small.labels, keep_text, predictor, parameters, small.problem)


def check_cascade(problem: Problem[Any], task: Task) -> None:
    """Raise ConfigError where the kind of problem has no cascade, or no texts to choose a
    threshold."""
    if problem.labels_words or problem.places_are_labels or not problem.calibrated_by:
        raise ConfigError(
            f"--cascade: cascades are for labels, or sets of labels, and task {task.name!r} is one "
            f"of {problem.name!r}. Leave it out."
        )
    if not len(task.selection):
        raise ConfigError(
            f"--cascade: task {task.name!r} has no validation texts to choose the threshold on "
            "(select=0, or too few texts), and the held-out texts score. Give --train FILE and "
            "--dev FILE with labelled texts that neither model has learned from."
        )


@dataclass(frozen=True)
class Answered:
    """A model's answers to some texts, and its confidence."""

    answers: Answers
    confidence: Numbers
    """Probability of the least probable decision for each text, (texts,)."""

    @classmethod
    def of(cls, answers: Answers, classifier: Classifier) -> Answered:
        """Return a classifier's answers with their confidence."""
        return cls(answers, classifier.problem.confidence(answers.outputs, classifier.labels))

    def then(self, strong: Answered, problem: Problem[Any], threshold: float) -> Answered:
        """Return the answers of a cascade: the strong model's where this one is not confident."""
        sure = self.confidence >= threshold

        def mixed(own: Sequence[Any], others: Sequence[Any]) -> list[Any]:
            pairs = zip(own, others, sure, strict=True)
            return [first if is_sure else second for first, second, is_sure in pairs]

        own, others = self.answers, strong.answers
        answers = Answers(
            mixed(own.outputs, others.outputs),
            problem.gather(mixed(own.predictions, others.predictions)),
        )
        return Answered(answers, np.where(sure, self.confidence, strong.confidence))


def chosen(
    names: tuple[str, str], small: Answered, strong: Answered, split: Split, task: Task
) -> CascadeFindings:
    """Return the lowest threshold at which the cascade scores no less than the strong model on the
    validation texts.

    Args:
        names: names of the two models.
        small: its answers to these texts.
        strong: its answers to these texts.
        split: these texts.
        task: task of the texts.

    Raises:
        ConfigError: the strong model's score is undefined.
    """
    steps = np.linspace(0, 1, CANDIDATES + 1)
    # the first passes no text on, and the last all texts
    thresholds = np.unique([0.0, *np.quantile(small.confidence, steps), 1.0 + 1e-9])

    def scored(answered: Answered) -> Score:
        predictions, labels = answered.answers.predictions, task.labels
        return score(
            task.metric, split.label_ids, predictions, label_count=len(labels), labels=labels
        )

    if reason := scored(strong).undefined:
        raise ConfigError(
            f"--cascade: {names[1]} has no {task.metric} on the {len(split)} validation texts, "
            f"which choose the threshold: {reason}. Give another --metric, or other texts."
        )
    by_threshold = [scored(small.then(strong, task.problem, each)) for each in thresholds.tolist()]
    # comparisons with NaN are false, so these are never chosen
    found = [math.nan if each.undefined else each.value for each in by_threshold]
    enough = np.flatnonzero(np.array(found) >= found[-1])  # the last is only the strong model
    place = int(enough[0])
    return CascadeFindings(
        small=names[0],
        strong=names[1],
        threshold=float(thresholds[place]),
        chosen_on=len(split),
        score=found[place],
        strong_score=found[-1],
        passed_on=0.0,
    )
