"""Training module of pre-training: the model that is written, and what only its training needs.

A head that the training alone needs is a module next to the model, in a subclass whose forward
takes a corrupted batch and returns the parts of the loss. The loss is computed inside the module,
so that a distributed run sees which parameters it used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.training.examples import TensorBatch, model_inputs
from bertender.training.objective import LossParts
from distill.objectives.masking import Masking, step_generator

__all__ = ["MaskedBatch", "OwnHead", "PretrainingModule"]


class PretrainingModule(nn.Module):
    """Holds the model that is written in the end.

    Args:
        model: an encoder with a head of transformers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def finished(self) -> PreTrainedModel:
        """Return the model, without the modules of its training."""
        return self.model

    def encoded(self, batch: TensorBatch) -> Any:
        """Return the outputs of the encoder below the head: states (batch, seq, hidden), pooled."""
        encoder = self.model.base_model
        return encoder(**model_inputs(encoder, batch))

    def with_own_weights(self, head: nn.Module) -> nn.Module:
        """Draw the weights of a new head as those of the model were drawn."""
        return head.apply(self.model._init_weights)


class OwnHead(PretrainingModule):
    """A model that learns through its own head alone."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Any:
        """Return the model's own outputs."""
        return self.model(input_ids, attention_mask, token_type_ids)


class MaskedBatch:
    """The objective of a pretraining module that computes its loss itself, on masked tokens."""

    def __init__(self, masking: Masking, seed: int) -> None:
        self.masking = masking
        self.seed = seed

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        masked = self.masking.masked_batch(batch, step_generator(self.seed, step))
        parts: LossParts = model(masked)
        return parts
