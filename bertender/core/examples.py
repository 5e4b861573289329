"""Tokenised training examples, and what a model takes of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

__all__ = ["TensorBatch", "TokenDataset", "input_names", "model_inputs"]

TensorBatch = dict[str, torch.Tensor]

SEQUENCE_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")


class TokenDataset(Dataset[dict[str, Any]]):
    """Tokenised examples: columns of equal length; `input_ids` and its companions are ragged.

    Args:
        columns: a value an example, or in token columns, a value or a row of values a token; one
            that is a tensor with a row an example may be memory-mapped.
        pad_token_id: what pads `input_ids`.
        token_padding: token columns beside `input_ids` and its companions, and what pads each.
        lengths: tokens of each example, where they are known without reading all of them.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any] | torch.Tensor],
        pad_token_id: int,
        token_padding: Mapping[str, int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.columns = columns
        self.pad_token_id = pad_token_id
        self.token_padding = token_padding or {}
        self.lengths = lengths or [len(ids) for ids in columns["input_ids"]]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}

    def where(self, kept: Sequence[bool]) -> TokenDataset:
        """Return the examples that are kept, a truth for each."""
        columns = {
            name: [value for value, keep in zip(column, kept, strict=True) if keep]
            for name, column in self.columns.items()
        }
        return TokenDataset(columns, self.pad_token_id, self.token_padding)

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> TensorBatch:
        """Stack rows into tensors; token columns (batch, seq) are padded to their longest."""
        return {name: self._stacked(name, [row[name] for row in rows]) for name in rows[0]}

    def _stacked(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        padding = {
            **dict.fromkeys(SEQUENCE_COLUMNS, 0),
            "input_ids": self.pad_token_id,
            **self.token_padding,
        }
        if name not in padding:
            rows = isinstance(values[0], torch.Tensor)
            return torch.stack(list(values)) if rows else torch.as_tensor(values)
        tokens = [torch.as_tensor(each) for each in values]
        return pad_sequence(tokens, batch_first=True, padding_value=padding[name])


def input_names(model: torch.nn.Module) -> list[str]:
    """Return the token columns that a model's forward takes (DistilBERT has no segments)."""
    accepted = inspect.signature(getattr(model, "module", model).forward).parameters
    return [name for name in SEQUENCE_COLUMNS if name in accepted]


def model_inputs(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> TensorBatch:
    """Return the token columns of a batch that the model's forward takes."""
    return {name: batch[name] for name in input_names(model) if name in batch}
