"""The losses of heads: with labels, softened, and of logits themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertender.problems.problem import NO_LABEL

if TYPE_CHECKING:
    import torch

LEAST_WEIGHT = 1e-9
"""Of all labels of a batch together; less is none."""


@dataclass(frozen=True)
class LabelLoss:
    """How a loss with labels counts them."""

    weights: tuple[float, ...] = ()
    """Of each label; none where all weigh the same."""
    smoothing: float = 0.0
    """Share of the true label that is spread over all (Szegedy et al. 2016, arXiv 1512.00567,
    section 7)."""


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in at least float32: sums and exponentials lose too much in bfloat16."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def hard_labels(
    student_logits: torch.Tensor, label_ids: torch.Tensor, how: LabelLoss = LabelLoss()
) -> torch.Tensor:
    """Cross-entropy of the logits (batch, labels) with the true labels (batch).

    In tagging, (batch, seq, labels) with (batch, seq). Examples or tokens without a label
    (NO_LABEL) are left out; 0 where a batch has none. With weights, the mean is a weighted one.
    """
    from torch.nn import functional

    logits, labels = precise(student_logits).flatten(0, -2), label_ids.flatten()
    weights = logits.new_tensor(how.weights) if how.weights else None
    total = functional.cross_entropy(
        logits,
        labels,
        weight=weights,
        ignore_index=NO_LABEL,
        reduction="sum",
        label_smoothing=how.smoothing,
    )
    known = labels != NO_LABEL
    if weights is None:
        return total / known.sum().clamp(min=1)
    return total / (weights[labels.clamp(min=0)] * known).sum().clamp(min=LEAST_WEIGHT)


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


def averaged_distributions(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return logits (rows, classes) of the mean distribution; those of one stay as they are.

    A distribution leaves the level of its logits open, and its logarithm lies at another one in
    each text. Their level, the mean over the classes, is made that of the teachers' logits, so that
    a student may be brought to the logits themselves: teachers that agree give their own.
    """
    import torch

    if len(logits) == 1:
        return logits[0]
    together = torch.stack(list(logits))  # (teachers, rows, classes)
    mean = together.log_softmax(-1).logsumexp(0)
    level = together.mean((0, -1)).unsqueeze(-1)  # (rows, 1)
    return mean - mean.mean(-1, keepdim=True) + level
