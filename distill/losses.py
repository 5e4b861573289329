"""The losses of distillation: functions of student and teacher tensors, with masks."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["hard_labels", "hidden_cosine", "soft_labels"]


def soft_labels(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
) -> torch.Tensor:
    """KL divergence of the softened student from the softened teacher, times T squared.

    Hinton et al. 2015 (arXiv 1503.02531), section 2: gradients of soft targets shrink with the
    square of the temperature, and T squared restores them.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels); no gradient flows into it.
        temperature: above 0; larger is softer.
    """
    student = functional.log_softmax(_precise(student_logits) / temperature, dim=-1)
    teacher = functional.log_softmax(_precise(teacher_logits.detach()) / temperature, dim=-1)
    divergence = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2


def hard_labels(student_logits: torch.Tensor, label_ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the logits (batch, labels) with the true labels (batch)."""
    return functional.cross_entropy(_precise(student_logits), label_ids)


def hidden_cosine(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One minus the cosine of student and teacher states, averaged over real tokens.

    Sanh et al. 2019 (arXiv 1910.01108), section 2: the cosine embedding loss, which aligns the
    directions of the hidden states.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden), of the same width; no gradient flows into it.
        mask: (batch, seq), 1 for a real token and 0 for padding.
    """
    cosine = functional.cosine_similarity(
        _precise(student_states), _precise(teacher_states.detach()), dim=-1
    )  # (batch, seq)
    weights = mask.to(cosine.dtype)
    return ((1 - cosine) * weights).sum() / weights.sum()


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in at least float32: sums and exponentials lose too much in bfloat16."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
