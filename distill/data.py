"""A task's examples as token columns, ready for training."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from bertender.core.training import TokenDataset
from bertender.tasks.task import Split

__all__ = ["token_dataset"]


def token_dataset(
    split: Split, tokenizer: PreTrainedTokenizerBase, max_length: int, **columns: Any
) -> TokenDataset:
    """Tokenise a split.

    Args:
        split: labelled examples.
        tokenizer: the tokenizer of the model to be trained.
        max_length: longer examples are truncated to so many tokens.
        columns: more columns, a row each example, for the objective (teacher logits).
    """
    texts = [list(column) for column in zip(*split.examples, strict=True)]
    tokens = tokenizer(*texts, truncation=True, max_length=max_length, padding=False)
    return TokenDataset({**tokens, "labels": split.label_ids, **columns}, tokenizer.pad_token_id)
