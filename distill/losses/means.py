"""Means of losses: over real tokens, in float32 at least."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.training.label_losses import precise

if TYPE_CHECKING:
    import torch

__all__ = ["mean", "precise"]


def mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the values where the mask is 1."""
    weights = mask.to(values.dtype)
    return (values * weights).sum() / weights.sum()
