"""PROBLEMS: the kinds of problems that a model can be trained and served for, one a file."""

from __future__ import annotations

from typing import Any

from bertender.core.card import TaskRecord
from bertender.core.config import Table
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import Problem
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.ranking import RANKING
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
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

PROBLEMS = Table[Problem[Any]]("problem type", {kind.name: kind for kind in KINDS})


def problem_of_task(task: TaskRecord) -> Problem[Any]:
    """Return the kind of problem of the task that a card records, with what was fitted for it.

    An encoder has none and gets SINGLE_LABEL: opening it raises the error of its missing head.
    """
    kind: Problem[Any] = PROBLEMS.get(task.problem_type, SINGLE_LABEL)
    return kind.with_fitted(task.fitted)
