"""The longest input of a model that is trained: given, or chosen from its texts.

The tokenizer carries it as `model_max_length`: whoever reads texts with this tokenizer, or with the
one that is saved with the model, truncates them at the same token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertender.core.findings import LengthFindings, TextLengths
from bertender.models.families import check_positions
from bertender.tasks.task import Split, Task
from bertender.text.batch import longest_input

PERCENTILE = 99
LEAST = 128
"""Training texts may be shorter than those to come: SST-2 trains on phrases. A longer input costs
nothing before such a text comes, for batches are padded to their longest and no further."""
MULTIPLE = 8


def usual_length(tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the longest input that suits the training texts of tasks, within the tokenizer's.

    It is the 99th percentile of their tokens, the largest of several tasks, rounded up to a
    multiple of 8; 128 at least.
    """
    percentiles = [
        np.percentile(_counts(task, task.train, tokenizer), PERCENTILE, method="higher")
        for task in tasks
    ]
    longest = -(-int(max(percentiles)) // MULTIPLE) * MULTIPLE
    return min(max(longest, LEAST), longest_input(tokenizer))


def cut_at(
    tokenizer: PreTrainedTokenizerBase, max_length: int, config: PretrainedConfig
) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer that truncates texts to so many tokens.

    Raises:
        ConfigError: the model of this config has fewer positions.
    """
    check_positions(max_length, config)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_length
    return tokenizer


def length_findings(task: Task, tokenizer: PreTrainedTokenizerBase) -> LengthFindings:
    """Return how many texts of a task are longer than a tokenizer's longest input."""
    longest = longest_input(tokenizer)

    def lengths(split: Split) -> TextLengths:
        return TextLengths.of(_counts(task, split, tokenizer), longest)

    return LengthFindings(
        max_length=longest, training=lengths(task.train), held_out=lengths(task.dev)
    )


def _counts(task: Task, split: Split, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return task.problem.encoder(tokenizer, None).counts(split.examples)
