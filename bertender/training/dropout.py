"""Training without dropout."""

from __future__ import annotations

from torch import nn

__all__ = ["switch_off_dropout"]


def switch_off_dropout(model: nn.Module) -> None:
    """Set the parts of a model that drop values in training, or may, as in evaluation.

    Attention drops values by a function, according to its own mode: so all parts are set but those
    in which the mode decides something else, which set `differs_in_training`, and torch's recurrent
    layers, whose gradient a GPU computes in training mode alone.
    """
    for part in model.modules():
        if not (isinstance(part, nn.RNNBase) or getattr(part, "differs_in_training", False)):
            part.training = False
