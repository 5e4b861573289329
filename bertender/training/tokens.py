"""A task's examples as token columns."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from bertender.tasks.task import Split
from bertender.text.batch import longest_input
from bertender.training.examples import Padding, TokenDataset

__all__ = ["token_dataset"]


def token_dataset(
    split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, **columns: Any
) -> TokenDataset:
    """Tokenise a split.

    Args:
        split: labelled examples.
        tokenizer: the tokenizer of the model to be trained.
        max_length: longer examples are truncated to so many tokens, or to what the model takes.
        columns: more columns, a row each example, for the objective (teacher logits).
    """
    texts = [list(column) for column in zip(*split.examples, strict=True)]
    longest = min(max_length, longest_input(tokenizer))
    tokens = tokenizer(*texts, truncation=True, max_length=longest, padding=False)
    columns = {**tokens, "labels": split.label_ids, **columns}
    return TokenDataset(columns, Padding.of(tokenizer))
