"""PROBLEMS: the kinds of problems that a model can be trained and served for, one a file."""

from __future__ import annotations

from typing import Any

from bertender.core.config import Table
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.problem import Problem
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
)

PROBLEMS = Table[Problem[Any]]("problem type", {kind.name: kind for kind in KINDS})
