"""What a loss may read from a model: its logits and hidden states, on one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bertender.core.examples import TensorBatch, model_inputs

__all__ = ["Signals", "read_signals"]


@dataclass(frozen=True)
class Signals:
    """A model's answers on a batch."""

    logits: torch.Tensor
    """(batch, labels)"""
    hidden_states: tuple[torch.Tensor, ...] = ()
    """Embeddings and each layer's output, (batch, seq, hidden); empty unless asked for."""


def read_signals(model: torch.nn.Module, batch: TensorBatch, hidden_states: bool) -> Signals:
    """Run the model on a batch; keep its hidden states only where something will read them."""
    outputs = model(**model_inputs(model, batch), output_hidden_states=hidden_states)
    return Signals(outputs.logits, tuple(outputs.hidden_states or ()) if hidden_states else ())
