"""A task's examples as token columns."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from bertender.tasks.task import Split
from bertender.training.examples import Padding, TokenDataset
from bertender.training.heads import HEADS

__all__ = ["token_dataset"]


def token_dataset(
    split: Split,
    tokenizer: PreTrainedTokenizerBase,
    problem_type: str = "single_label_classification",
    **columns: Any,
) -> TokenDataset:
    """Tokenise a split.

    Args:
        split: labelled examples.
        tokenizer: of the model to be trained; longer examples than its `model_max_length` are
            truncated.
        problem_type: what the examples are labelled with, a row of HEADS.
        columns: more columns, a row each example, for the objective (teacher logits).
    """
    head = HEADS[problem_type]
    tokens, labels = head.tokenize(split, tokenizer)
    padding = Padding.of(tokenizer, **head.padding)
    return TokenDataset({**tokens, **labels, **columns}, padding)
