"""PROBLEMS: the kinds of problems, one a file."""

from __future__ import annotations

from typing import Any

from bertender.core.card import TaskRecord
from bertender.core.config import Table
from bertender.metrics.metric import OF_HEAD
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import Problem
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.ranking import RANKING
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.several_heads import BETWEEN, SeveralHeads
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION

KINDS: tuple[Problem[Any], ...] = (
    SINGLE_LABEL,
    MULTI_LABEL,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    SENTENCE_EMBEDDING,
    QUESTION_ANSWERING,
    MULTIPLE_CHOICE,
    RANKING,
)


class Kinds(Table[Problem[Any]]):
    """The kinds by name; several names by commas, each after HEAD:, are several heads."""

    def __missing__(self, name: str) -> Problem[Any]:
        if BETWEEN not in name:
            return super().__missing__(name)
        parts = [part.strip().partition(OF_HEAD) for part in name.split(BETWEEN)]
        return SeveralHeads({head: self[kind] for head, _, kind in parts})

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or BETWEEN not in name:
            return super().__contains__(name)
        return all(part.rpartition(OF_HEAD)[2].strip() in self for part in name.split(BETWEEN))


ONE_OUTPUT: tuple[Problem[Any], ...] = (REGRESSION, RANKING, MULTI_LABEL)
SEVERAL_OUTPUTS: tuple[Problem[Any], ...] = (SINGLE_LABEL, MULTI_LABEL)
"""Kinds that the head of a finished model may be of, by its outputs for a text; the default first.
"""

PROBLEMS = Kinds("problem type", {kind.name: kind for kind in KINDS})


def problem_of_task(task: TaskRecord) -> Problem[Any]:
    """Return the kind of problem of a card's task, with its fitted values. An encoder gets
    SINGLE_LABEL: opening it raises the error of its missing head.
    """
    known = task.problem_type in PROBLEMS
    kind: Problem[Any] = PROBLEMS[task.problem_type] if known else SINGLE_LABEL
    problem = kind.of_labels(task.labels).with_fitted(task.fitted)
    return problem.with_calibration(task.calibration)
