"""Losses of hidden states, and of the [CLS] state.

PyTorch is imported in the functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.losses.means import mean, precise

if TYPE_CHECKING:
    import torch

__all__ = [
    "hidden_cosine",
    "hidden_mean_mse",
    "hidden_mse",
    "hidden_variance_difference",
    "normalised_hidden_mse",
    "normalised_sentence_mse",
    "sentence_cosine",
]


def hidden_cosine(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One minus the cosine of student and teacher states, averaged over real tokens.

    Sanh et al. 2019 (arXiv 1910.01108), section 2: the cosine embedding loss, which aligns the
    directions of the hidden states.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden), of the same width.
        mask: (batch, seq).
    """
    from torch.nn import functional

    cosine = functional.cosine_similarity(
        precise(student_states), precise(teacher_states.detach()), dim=-1
    )  # (batch, seq)
    return mean(1 - cosine, mask)


def hidden_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of hidden states over real tokens and the width.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 8 and 9.

    Args:
        student_states: (batch, seq, hidden), brought to the teacher's width by a projection.
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    difference = precise(student_states) - precise(teacher_states.detach())
    return mean(difference.square().mean(-1), mask)


def normalised_hidden_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of hidden states that are brought to mean 0 and variance 1.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984), eq. 1: feature map transfer, of maps that
    a layer norm without parameters brought to one scale, over real tokens and the width.

    Args:
        student_states: (batch, seq, hidden), brought to the teacher's width by a projection.
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    return hidden_mse(_normalised(student_states), _normalised(teacher_states), mask)


def hidden_mean_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Squared difference of the means over the width, averaged over real tokens.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984): what `normalised_hidden_mse` takes away,
    together with `hidden_variance_difference`. The widths need not be equal.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    difference = precise(student_states).mean(-1) - precise(teacher_states.detach()).mean(-1)
    return mean(difference.square(), mask)


def hidden_variance_difference(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Absolute difference of the variances over the width, averaged over real tokens.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984). The widths need not be equal.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    ours, theirs = precise(student_states), precise(teacher_states.detach())
    return mean((ours.var(-1, correction=0) - theirs.var(-1, correction=0)).abs(), mask)


def normalised_sentence_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of [CLS] states of length one, over the batch and the width.

    Sun et al. 2019 (PKD, arXiv 1908.09355), eq. 7. The mean over the width follows the published
    code, to whose weight of 500 it belongs; the paper writes the squared distance.

    Args:
        student_states: (batch, hidden).
        teacher_states: (batch, hidden), of the same width.
    """
    from torch.nn import functional

    student = functional.normalize(precise(student_states), dim=-1)
    teacher = functional.normalize(precise(teacher_states.detach()), dim=-1)
    return functional.mse_loss(student, teacher)


def sentence_cosine(student_states: torch.Tensor, teacher_states: torch.Tensor) -> torch.Tensor:
    """One minus the cosine of the [CLS] states, averaged over the batch.

    Aguilar et al. 2019 (arXiv 1910.03723), eq. 3.

    Args:
        student_states: (batch, hidden).
        teacher_states: (batch, hidden), of the same width.
    """
    from torch.nn import functional

    cosine = functional.cosine_similarity(
        precise(student_states), precise(teacher_states.detach()), dim=-1
    )  # (batch)
    return (1 - cosine).mean()


def _normalised(states: torch.Tensor) -> torch.Tensor:
    """Return each token's state (batch, seq, hidden) with mean 0 and variance 1."""
    from torch.nn import functional

    return functional.layer_norm(precise(states), states.shape[-1:], eps=1e-12)
