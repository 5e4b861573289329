"""Losses of weights that were brought to one size.

PyTorch is imported in the functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distill.losses.means import precise

if TYPE_CHECKING:
    import torch

__all__ = ["weight_mse"]


def weight_mse(student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum over the weights of the mean squared difference of each.

    Zhao et al. 2019 (arXiv 1909.11687v1), section 3.3. One of each two was projected to the size
    of the other. No gradient flows into the teacher's own weights, but into a projection of them.

    Args:
        student: weights of any shapes.
        teacher: as many, of the same shapes.
    """
    import torch
    from torch.nn import functional

    pairs = zip(student, teacher, strict=True)
    return torch.stack(
        [functional.mse_loss(precise(ours), precise(theirs)) for ours, theirs in pairs]
    ).sum()
