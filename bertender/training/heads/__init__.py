"""HEADS: the PyTorch side of each kind of problem: head, token columns and losses."""

from __future__ import annotations

from typing import Any

from bertender.core.config import Table
from bertender.problems.problem import Problem
from bertender.problems.several_heads import SeveralHeads
from bertender.training.heads.head import Head
from bertender.training.heads.numbers import NumberHead
from bertender.training.heads.several import SeveralHead
from bertender.training.heads.texts import ChoiceHead, LabelHead, RankingHead, SetHead
from bertender.training.heads.tokens import AnswerHead, TagHead
from bertender.training.heads.vectors import VectorHead

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
