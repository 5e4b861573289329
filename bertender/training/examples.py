"""Tokenised training examples, and the longest input: given, or chosen from the texts.

The tokenizer carries the longest input as `model_max_length`: whoever reads texts with this
tokenizer, or with the one that is saved with the model, truncates them at the same token.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError
from bertender.core.findings import LengthFindings, TextLengths
from bertender.models.families import check_positions
from bertender.problems import PROBLEMS
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import longest_input
from bertender.text.windows import WINDOW_TOKENS, WINDOWS, windows_of
from bertender.training.heads import head_of
from bertender.training.heads.head import ROWS

logger = logging.getLogger(__name__)

TensorBatch = dict[str, torch.Tensor]

TASK_COLUMN = "task"
"""The number of an example's task, where there are several; batches mix none of them."""


PERCENTILE = 99
"""Of the tokens of training texts, the longest input that is chosen."""
LEAST_LENGTH = 128
"""Training texts may be shorter than those to come: SST-2 trains on phrases. A longer input costs
nothing before such a text comes, for batches are padded to their longest and no further."""
MULTIPLE = 8


@dataclass(frozen=True)
class Padding:
    """Padding of the texts of a batch, as their tokenizer does it."""

    token_id: int
    segment_id: int = 0
    left: bool = False
    """In front of a text: XLNet predicts at the last token."""

    others: Mapping[str, int] = field(default_factory=dict)
    """Token columns besides `input_ids` and its companions, and what pads each."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, **others: int) -> Self:
        """Return how a tokenizer pads."""
        left = tokenizer.padding_side == "left"
        return cls(tokenizer.pad_token_id, tokenizer.pad_token_type_id, left, others)

    def with_others(self, **others: int) -> Self:
        """Return the same with more token columns, and what pads each."""
        return replace(self, others={**self.others, **others})

    def value(self, column: str) -> int | None:
        """Return what pads a token column; None for a column with one value an example."""
        own = {"input_ids": self.token_id, "attention_mask": 0, "token_type_ids": self.segment_id}
        return {**own, **self.others}.get(column)


class TokenDataset(Dataset[dict[str, Any]]):
    """Tokenised examples: columns of equal length; `input_ids` and its companions are ragged.

    Args:
        columns: a value an example, or in token columns, a value or a row of values a token; one
            that is a tensor with a row an example may be memory-mapped. With a column ROWS, token
            columns have a list of such values an example, one each token row, and others may.
        padding: what makes the examples of a batch equally long.
        lengths: tokens of each example, of its longest row, where they are known without reading
            all of them.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any] | torch.Tensor],
        padding: Padding,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.columns = columns
        self.padding = padding
        self.lengths = lengths or self._lengths()

    def _lengths(self) -> Sequence[int]:
        every = self.columns["input_ids"]
        if self.counts is None:
            return [len(ids) for ids in every]
        return [max(map(len, rows)) for rows in every]

    @property
    def counts(self) -> Sequence[int] | None:
        """Token rows of each example; None where each has one."""
        return self.columns.get(ROWS)  # type: ignore[return-value]  # a list of numbers

    @property
    def groups(self) -> Sequence[int]:
        """The number of each example's group, its task; all are one where there is none."""
        return list(self.columns.get(TASK_COLUMN, [0] * len(self)))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}

    def where(self, chosen: Sequence[bool]) -> TokenDataset:
        """Return the selected examples, a truth for each."""
        columns = {
            name: [value for value, keep in zip(column, chosen, strict=True) if keep]
            for name, column in self.columns.items()
        }
        return TokenDataset(columns, self.padding)

    def part(self, start: int, end: int) -> TokenDataset:
        """Return the examples from one number up to another."""
        columns = {name: column[start:end] for name, column in self.columns.items()}
        return TokenDataset(columns, self.padding, self.lengths[start:end])

    def with_columns(self, **columns: Sequence[Any] | torch.Tensor) -> TokenDataset:
        """Return the examples with more columns, a row each example."""
        return TokenDataset({**self.columns, **columns}, self.padding)

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> TensorBatch:
        """Stack rows into tensors; token columns (batch, seq) are padded to their longest.

        Where examples have several token rows, these are the batch of all columns that have a value
        for each.
        """
        batch = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if self.counts is not None and _has_rows(values[0]):
                values = [each for value in values for each in value]
            batch[name] = self._stacked(name, values)
        return batch

    def _stacked(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        padding = self.padding.value(name)
        if padding is None:
            rows = isinstance(values[0], torch.Tensor)
            return torch.stack(list(values)) if rows else torch.as_tensor(values)
        if isinstance(values[0], list):
            integers = np.array([*chain.from_iterable(values)])
            if integers.dtype.kind == "i":
                return torch.from_numpy(self._padded(integers, values, padding))
        tokens = [torch.as_tensor(each) for each in values]
        side = "left" if self.padding.left else "right"
        return pad_sequence(tokens, batch_first=True, padding_value=padding, padding_side=side)

    def _padded(
        self, joined: NDArray[Any], values: Sequence[Sequence[Any]], padding: int
    ) -> NDArray[Any]:
        """Return what is joined of the texts of a batch as rows (batch, seq) of equal length.

        All at once: to make a tensor of each text takes longer than a step of a small model.
        """
        counts = np.array([len(each) for each in values])
        is_token = np.arange(counts.max()) < counts[:, np.newaxis]
        if self.padding.left:
            is_token = is_token[:, ::-1]
        padded = np.full((*is_token.shape, *joined.shape[1:]), padding, joined.dtype)
        padded[is_token] = joined
        return padded


def _has_rows(value: Any) -> bool:
    """Return whether a value of an example has rows itself."""
    if isinstance(value, torch.Tensor):
        return value.ndim > 1
    return isinstance(value, Sequence) and any(isinstance(each, Sequence) for each in value[:1])


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
        problem_type: what the examples are labelled with, a row of PROBLEMS.
        columns: more columns, a row each example, for the objective (teacher logits).
    """
    head = head_of(PROBLEMS[problem_type])
    tokens, labels = head.tokenize(split, tokenizer)
    if not windows_of(tokenizer) and len(tokens["input_ids"]) == len(split):
        _say_cut(split, tokens["input_ids"], tokenizer, problem_type)
    padding = Padding.of(tokenizer, **head.padding)
    return TokenDataset({**tokens, **labels, **columns}, padding)


def _say_cut(
    split: Split, ids: Sequence[Sized], tokenizer: PreTrainedTokenizerBase, problem_type: str
) -> None:
    """Log a warning of texts that are longer than the longest input, before they are learned."""
    longest, encode = longest_input(tokenizer), PROBLEMS[problem_type].encoder(tokenizer)
    full = [
        example
        for example, own in zip(split.examples, ids, strict=True)
        if len(own) >= longest  # no other was cut
    ]
    cut = [count - longest for count in encode.counts(full) if count > longest] if full else []
    if cut:
        share = sum(cut) / (sum(map(len, ids)) + sum(cut))
        logger.warning(
            "%d of %d training texts are longer than %d tokens and are cut: the longest has %d, "
            "and %.1f %% of all tokens are not read. --max-length sets another limit, in training "
            "and wherever the model is used",
            *(len(cut), len(split), longest, longest + max(cut), 100 * share),
        )


def usual_length(
    tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, windows: str | None = None
) -> int:
    """Return the longest input that suits the training texts of tasks, within the tokenizer's.

    It is the 99th percentile of their tokens, the largest of several tasks, rounded up to a
    multiple of 8; 128 at least. Of texts that are read in windows it is WINDOW_TOKENS, or that of
    their kind of problem.
    """
    if own := [task.problem.window for task in tasks if task.problem.window]:
        return min(*own, longest_input(tokenizer))
    if windows:
        return min(WINDOW_TOKENS, longest_input(tokenizer))
    percentiles = [
        np.percentile(_counts(task, task.train, tokenizer), PERCENTILE, method="higher")
        for task in tasks
    ]
    longest = -(-int(max(percentiles)) // MULTIPLE) * MULTIPLE
    return min(max(longest, LEAST_LENGTH), longest_input(tokenizer))


def cut_at(
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    config: PretrainedConfig,
    windows: str | None = None,
) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer that truncates texts to so many tokens.

    Args:
        tokenizer: of a model.
        max_length: tokens of a text, or of a window.
        config: of the model.
        windows: a name of WINDOW_POOLINGS, by which longer texts are read in windows instead.

    Raises:
        ConfigError: the model of this config has fewer positions, or the tokenizer cuts no windows.
    """
    check_positions(max_length, config)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_length
    if windows:
        if not tokenizer.is_fast:
            raise ConfigError(
                f"windows={windows}: the tokenizer {type(tokenizer).__name__} has no "
                "tokenizer.json, which says what is put around a text. Leave it out, or give "
                "another model."
            )
        tokenizer.init_kwargs[WINDOWS] = windows
    return tokenizer


def length_findings(task: Task, tokenizer: PreTrainedTokenizerBase) -> LengthFindings:
    """Return how many texts of a task are longer than a tokenizer's longest input."""
    longest = longest_input(tokenizer)

    def lengths(split: Split) -> TextLengths:
        return TextLengths.of(_counts(task, split, tokenizer), longest)

    return LengthFindings(
        max_length=longest,
        training=lengths(task.train),
        held_out=lengths(task.dev),
        windows=bool(windows_of(tokenizer) or task.problem.window),
    )


def _counts(task: Task, split: Split, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return task.problem.encoder(tokenizer).counts(split.examples)
