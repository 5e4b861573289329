"""Tokenised training examples, and the longest input: as set, or chosen from the texts.

The tokenizer has the longest input as `model_max_length`, so that everyone who uses it, or its copy
saved with the model, truncates texts at the same token.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

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
from bertender.text.tokenizer import Padding, longest_input, padding_of
from bertender.text.windows import WINDOW_TOKENS, WINDOWS, windows_of
from bertender.training.heads import head_of
from bertender.training.heads.head import ROWS

logger = logging.getLogger(__name__)

TensorBatch = dict[str, torch.Tensor]

TASK_COLUMN = "task"
"""Number of an example's task, if there are several; a batch has examples of one task."""


PERCENTILE = 99
"""Percentile of the training texts' tokens, for the chosen longest input."""
LEAST_LENGTH = 128
"""Training texts may be shorter than later texts: SST-2 trains on phrases. A longer input costs
nothing until such a text comes, since batches are padded only to their longest text."""
MULTIPLE = 8


class TokenDataset(Dataset[dict[str, Any]]):
    """Tokenised examples: columns of equal length; `input_ids` and its companions are ragged.

    Args:
        columns: one value per example, or in token columns, one value or row of values per token; a
            tensor with one row per example may be memory-mapped. With a column ROWS, token columns
            have a list of such values per example, one for each token row, and other columns may.
        padding: padding of the examples in a batch.
        lengths: tokens of each example's longest row, if known without reading all examples.
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
        """Token rows of each example; None if each has one."""
        return self.columns.get(ROWS)  # type: ignore[return-value]  # a list of numbers

    @property
    def groups(self) -> Sequence[int]:
        """Group of each example, its task; all the same for a single task."""
        return list(self.columns.get(TASK_COLUMN, [0] * len(self)))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several examples."""
        return [self[index] for index in indices]

    def batch(self, indices: Sequence[int]) -> TensorBatch:
        """Return several examples, stacked by `collate`."""
        return self.collate(self.rows(indices))

    def where(self, chosen: Sequence[bool]) -> TokenDataset:
        """Return the selected examples, a truth for each."""
        columns = {
            name: [value for value, keep in zip(column, chosen, strict=True) if keep]
            for name, column in self.columns.items()
        }
        return TokenDataset(columns, self.padding)

    def part(self, start: int, end: int) -> TokenDataset:
        """Return the examples in a range of indices."""
        columns = {name: column[start:end] for name, column in self.columns.items()}
        return TokenDataset(columns, self.padding, self.lengths[start:end])

    def with_columns(self, **columns: Sequence[Any] | torch.Tensor) -> TokenDataset:
        """Return the examples with more columns, one row per example."""
        return TokenDataset({**self.columns, **columns}, self.padding)

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> TensorBatch:
        """Stack rows into tensors; token columns (batch, seq) are padded to the longest row.

        If examples have several token rows, the batch consists of these in all columns with a value
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
        side = self.padding.side
        return pad_sequence(tokens, batch_first=True, padding_value=padding, padding_side=side)

    def _padded(
        self, joined: NDArray[Any], values: Sequence[Sequence[Any]], padding: int
    ) -> NDArray[Any]:
        """Return the concatenated texts of a batch as rows (batch, seq) of equal length.

        It pads all at once: creating a tensor for each text takes longer than a step of a small
        model.
        """
        counts = np.array([len(each) for each in values])
        is_token = np.arange(counts.max()) < counts[:, np.newaxis]
        if self.padding.side == "left":
            is_token = is_token[:, ::-1]
        padded = np.full((*is_token.shape, *joined.shape[1:]), padding, joined.dtype)
        padded[is_token] = joined
        return padded


def _has_rows(value: Any) -> bool:
    """Return whether an example's value has rows itself."""
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
        tokenizer: tokenizer of the model to train; examples longer than its `model_max_length` are
            truncated.
        problem_type: kind of problem of the labels, a row of PROBLEMS.
        columns: more columns, one row per example, for the objective (teacher logits).
    """
    head = head_of(PROBLEMS[problem_type])
    tokens, labels = head.tokenize(split, tokenizer)
    padding = padding_of(tokenizer).with_others(**head.padding)
    dataset = TokenDataset({**tokens, **labels, **columns}, padding)
    if not windows_of(tokenizer) and len(dataset) == len(split):
        _warn_of_truncation(split, dataset, tokenizer, problem_type)
    return dataset


def _warn_of_truncation(
    split: Split, dataset: TokenDataset, tokenizer: PreTrainedTokenizerBase, problem_type: str
) -> None:
    """Log a warning before training on texts that are longer than the longest input."""
    longest, encode = longest_input(tokenizer), PROBLEMS[problem_type].encoder(tokenizer)
    full = [
        example
        for example, length in zip(split.examples, dataset.lengths, strict=True)
        if length >= longest  # no other text was truncated
    ]
    cut = [count - longest for count in encode.counts(full) if count > longest] if full else []
    if cut:
        share = sum(cut) / (sum(dataset.lengths) + sum(cut))
        logger.warning(
            "%d of %d training %s are longer than %d tokens and are cut: the longest has %d, "
            "and %.1f %% of %s are not read. --max-length sets another limit, in training "
            "and wherever the model is used",
            *(len(cut), len(split), "texts" if dataset.counts is None else "examples"),
            *(longest, longest + max(cut), 100 * share),
            "all tokens" if dataset.counts is None else "the tokens of the longest rows",
        )


def usual_length(
    tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, windows: str | None = None
) -> int:
    """Return a suitable longest input for the training texts of tasks, within the tokenizer's
    limit.

    It is the 99th percentile of their tokens, the largest of several tasks, rounded up to a
    multiple of 8 and at least 128. For texts read in windows it is WINDOW_TOKENS, or the window of
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
    """Return a copy of a tokenizer that truncates texts to `max_length` tokens.

    Args:
        tokenizer: tokenizer of a model.
        max_length: tokens per text, or per window.
        config: config of the model.
        windows: name in WINDOW_POOLINGS, to read longer texts in windows instead.

    Raises:
        ConfigError: the model has fewer positions, or the tokenizer supports no windows.
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
    """Return how many texts of a task exceed a tokenizer's longest input."""
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
