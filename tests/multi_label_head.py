"""The head of the problem type in tests/multi_label.py."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.training.examples import TensorBatch
from bertender.training.heads import HEADS


def _hard_loss(logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(logits.float(), batch["labels"].float())


def _predicted(logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    """Return each label's choice between no and yes as a softmax's, (rows * labels, 2)."""
    flat = logits.flatten()
    return torch.stack([torch.zeros_like(flat), flat], dim=1)


HEAD = replace(
    HEADS[SINGLE_LABEL.name],
    problem="multi_label_classification",
    hard_loss=_hard_loss,
    predicted=_predicted,
    one_label=False,
)
