"""Training without dropout."""

from __future__ import annotations

from torch import nn

__all__ = ["switch_off_dropout"]


def switch_off_dropout(model: nn.Module) -> None:
    """Put every module that may drop values into evaluation mode.

    Attention drops values by a function, according to its own mode, so that is all modules but two
    kinds: those in which the mode decides something else, which set `differs_in_training`, and
    torch's recurrent layers, whose gradient a GPU computes in training mode alone.
    """
    for part in model.modules():
        if not (isinstance(part, nn.RNNBase) or getattr(part, "differs_in_training", False)):
            part.training = False
