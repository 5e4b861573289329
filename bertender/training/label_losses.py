"""Losses of logits.

PyTorch is imported in the functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertender.problems.problem import NO_LABEL

if TYPE_CHECKING:
    import torch

__all__ = [
    "NO_LABEL",
    "hard_labels",
    "logit_mse",
    "precise",
    "soft_cross_entropy",
    "soft_labels",
    "token_soft_labels",
    "vocabulary_labels",
]


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in at least float32: sums and exponentials lose too much in bfloat16."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def soft_labels(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
) -> torch.Tensor:
    """KL divergence of the softened student from the softened teacher, times T squared.

    Hinton et al. 2015 (arXiv 1503.02531), section 2: gradients of soft targets shrink with the
    square of the temperature, and T squared restores them.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
        temperature: above 0; larger is softer.
    """
    from torch.nn import functional

    student = functional.log_softmax(precise(student_logits) / temperature, dim=-1)
    teacher = functional.log_softmax(precise(teacher_logits.detach()) / temperature, dim=-1)
    divergence = functional.kl_div(student, teacher, reduction="sum", log_target=True)
    return divergence * temperature**2 / max(len(student), 1)


def token_soft_labels(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """`soft_labels` of every real token: a distribution over words or tags each.

    Sanh et al. 2019 (DistilBERT, arXiv 1910.01108), section 2, over the words of a vocabulary.

    Args:
        student_logits: (batch, seq, classes).
        teacher_logits: (batch, seq, classes).
        mask: (batch, seq).
        temperature: above 0; larger is softer.
    """
    real = mask.bool()
    return soft_labels(student_logits[real], teacher_logits[real], temperature)


def soft_cross_entropy(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Cross-entropy with the teacher's softened distribution, without T squared.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 10. It differs from `soft_labels` at T = 1
    by the teacher's entropy, which is constant; here the mean is over the batch alone.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
        temperature: above 0; larger is softer.
    """
    from torch.nn import functional

    student = functional.log_softmax(precise(student_logits) / temperature, dim=-1)
    teacher = functional.softmax(precise(teacher_logits.detach()) / temperature, dim=-1)
    return -(teacher * student).sum() / max(len(student), 1)


def logit_mse(student_logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """Mean squared difference of the logits, over the batch and the labels.

    Tang et al. 2019 (arXiv 1903.12136). The paper calls it the mean squared error and writes the
    squared distance; the mean over the labels follows its words.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
    """
    from torch.nn import functional

    return functional.mse_loss(precise(student_logits), precise(teacher_logits.detach()))


def hard_labels(student_logits: torch.Tensor, label_ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the logits (batch, labels) with the true labels (batch).

    In tagging, (batch, seq, labels) with (batch, seq). Examples or tokens without a label
    (NO_LABEL) are left out; 0 where a batch has none.
    """
    from torch.nn import functional

    total = functional.cross_entropy(
        precise(student_logits).flatten(0, -2),
        label_ids.flatten(),
        ignore_index=NO_LABEL,
        reduction="sum",
    )
    return total / (label_ids != NO_LABEL).sum().clamp(min=1)


def vocabulary_labels(
    logits: torch.Tensor, targets: torch.Tensor, entries: Sequence[int]
) -> torch.Tensor:
    """Cross-entropy of each target among the entries of its own vocabulary alone.

    Zhao et al. 2019 (arXiv 1909.11687v1), section 3.2: a softmax for each of the vocabularies
    that a row mixes.

    Args:
        logits: (batch, seq, all entries), one vocabulary after another.
        targets: (batch, seq), the numbers of entries; NO_LABEL where nothing is asked.
        entries: how many each vocabulary has.
    """
    from torch.nn import functional

    asked = targets != NO_LABEL
    rows, wanted = precise(logits[asked]), targets[asked]
    total, first = rows.sum() * 0, 0
    for own, of_vocabulary in zip(entries, rows.split(list(entries), dim=-1), strict=True):
        mine = (first <= wanted) & (wanted < first + own)
        total = total + functional.cross_entropy(
            of_vocabulary[mine], wanted[mine] - first, reduction="sum"
        )
        first += own
    return total / asked.sum().clamp(min=1)
