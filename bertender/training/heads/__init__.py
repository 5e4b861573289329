"""HEADS: the PyTorch side of each kind of problem: its head, its token columns and its losses."""

from __future__ import annotations

from typing import Any

from bertender.core.config import Table
from bertender.problems.problem import Problem
from bertender.problems.several_heads import SeveralHeads
from bertender.training.heads.head import (
    PART,
    POOLING,
    PREDICTING,
    ROWS,
    SPREAD,
    WEIGHT,
    Head,
    LabelLoss,
    averaged_distributions,
    divisor,
    hard_labels,
    logit_mse,
    mean_of_rows,
    parts_of_a_batch,
    precise,
    soft_labels,
)
from bertender.training.heads.numbers import NumberHead, exact_numbers, output_layer
from bertender.training.heads.several import SeveralHead
from bertender.training.heads.texts import (
    ChoiceHead,
    LabelHead,
    RankingHead,
    SetHead,
    TextHead,
    pooled_rows,
)
from bertender.training.heads.tokens import AnswerHead, TagHead
from bertender.training.heads.vectors import VectorHead

__all__ = [
    "AnswerHead",
    "ChoiceHead",
    "HEADS",
    "Head",
    "LabelHead",
    "LabelLoss",
    "NumberHead",
    "PART",
    "POOLING",
    "PREDICTING",
    "ROWS",
    "RankingHead",
    "SPREAD",
    "SetHead",
    "SeveralHead",
    "TagHead",
    "TextHead",
    "VectorHead",
    "WEIGHT",
    "averaged_distributions",
    "divisor",
    "exact_numbers",
    "hard_labels",
    "head_of",
    "logit_mse",
    "mean_of_rows",
    "output_layer",
    "parts_of_a_batch",
    "pooled_rows",
    "precise",
    "soft_labels",
]


HEADS = Table[Head](
    "head",
    {
        head.problem: head
        for head in (
            *(LabelHead(), SetHead(), NumberHead(), TagHead(), VectorHead(), AnswerHead()),
            *(ChoiceHead(), RankingHead()),
        )
    },
)


def head_of(problem: Problem[Any]) -> Head:
    """Return the head of a kind of problem."""
    if not isinstance(problem, SeveralHeads):
        return HEADS[problem.name]
    return SeveralHead(problem, {name: HEADS[kind.name] for name, kind in problem.heads.items()})
