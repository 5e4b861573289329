"""The problem type of an artifact's model, found without a library of models."""

from __future__ import annotations

from typing import Any

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.problems import PROBLEMS, SINGLE_LABEL, ProblemType

__all__ = ["problem_of", "problem_of_task"]


def problem_of(artifact: Artifact) -> ProblemType[Any]:
    """Return the row of PROBLEMS of an artifact's model.

    Of an encoder, which has none, the first row: opening it then raises the error of what it lacks.
    """
    return problem_of_task(artifact.card.task)


def problem_of_task(task: TaskRecord) -> ProblemType[Any]:
    """Return the same of the task that a card records."""
    problem: ProblemType[Any] = PROBLEMS.get(task.problem_type, SINGLE_LABEL)
    return problem
