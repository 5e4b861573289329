"""Tokenised training examples, and what a model takes of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

__all__ = ["TensorBatch", "TokenDataset", "input_names", "model_inputs"]

TensorBatch = dict[str, torch.Tensor]

SEQUENCE_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")


class TokenDataset(Dataset[dict[str, Any]]):
    """Tokenised examples: columns of equal length; `input_ids` and its companions are ragged."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], pad_token_id: int) -> None:
        self.columns = columns
        self.pad_token_id = pad_token_id
        self.lengths = [len(ids) for ids in columns["input_ids"]]

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
        return TokenDataset(columns, self.pad_token_id)

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> TensorBatch:
        """Stack rows into tensors; token columns (batch, seq) are padded to their longest."""
        longest = max(len(row["input_ids"]) for row in rows)
        return {
            name: torch.as_tensor([self._padded(name, row[name], longest) for row in rows])
            for name in rows[0]
        }

    def _padded(self, name: str, values: Any, longest: int) -> Any:
        if name not in SEQUENCE_COLUMNS:
            return values
        pad = self.pad_token_id if name == "input_ids" else 0
        return [*values, *[pad] * (longest - len(values))]


def input_names(model: torch.nn.Module) -> list[str]:
    """Return the token columns that a model's forward takes (DistilBERT has no segments)."""
    accepted = inspect.signature(getattr(model, "module", model).forward).parameters
    return [name for name in SEQUENCE_COLUMNS if name in accepted]


def model_inputs(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> TensorBatch:
    """Return the token columns of a batch that the model's forward takes."""
    return {name: batch[name] for name in input_names(model) if name in batch}
