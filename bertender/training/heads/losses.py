"""The losses of heads: with labels, softened, and of logits themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bertender.metrics.targets import NO_LABEL

if TYPE_CHECKING:
    import torch

LEAST_WEIGHT = 1e-9
"""Of all labels of a batch together; less is none."""


@dataclass
class Part:
    """A part of a step's batch: that of a process, or one of several that are run in turn."""

    number: int = 0
    """Its place among those that a process runs in turn."""
    in_turn: bool = False
    """Whether there are several of these."""
    averages: Sequence[torch.Tensor] = ()
    """Divisors of the sums of the means, in the order of the means: average counts of the parts
    of a batch. Without them, each sum is divided by the part's own count."""
    counts: list[torch.Tensor] = field(default_factory=list)
    """Of the means that were taken of this part, in order."""


PART: ContextVar[Part | None] = ContextVar("PART", default=None)
"""The part of a batch that losses are computed on now."""


@contextmanager
def parts_of_a_batch(part: Part | None = None) -> Iterator[Part]:
    """Take the means of losses over all parts of a step's batch, of which this is one.

    Every process must compute the same losses in it.
    """
    own = part or Part()
    token = PART.set(own)
    try:
        yield own
    finally:
        PART.reset(token)


def divisor(count: torch.Tensor) -> torch.Tensor:
    """Return what the sum of a loss is divided by for a mean over so many tokens or rows, at least
    LEAST_WEIGHT.

    In a distributed run it is the average count of a process: the gradients of the processes are
    averaged, and are then those of the mean over the whole batch. A mean of each process would
    weigh tokens by how few others its own part has. The same holds for parts that are run in turn.
    """
    import torch

    if (part := PART.get()) is not None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            count = count.detach().float()  # a copy of integers, and of floats by the division
            count = count / torch.distributed.get_world_size()
            torch.distributed.all_reduce(count)
        part.counts.append(count.detach())
        if part.averages:
            count = part.averages[len(part.counts) - 1]
    return count.clamp(min=LEAST_WEIGHT)


def mean_of_rows(values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean of one value a row, over all parts of a step's batch.

    Args:
        values: of the rows.
        weights: of the rows; None where all count alike.
    """
    if weights is None:
        return values.sum() / divisor(values.new_tensor(float(values.numel())))
    return (values * weights.view_as(values)).sum() / divisor(weights.sum())


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
        return total / divisor(known.sum().float())
    return total / divisor((weights[labels.clamp(min=0)] * known).sum())


def soft_labels(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    temperature: float,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """KL divergence of the softened student from the softened teacher, times T squared.

    Hinton et al. 2015 (arXiv 1503.02531), section 2: gradients of soft targets shrink with the
    square of the temperature, and T squared restores them.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
        temperature: above 0; larger is softer.
        weights: (batch,), by how much each row counts; None where all count alike.
    """
    from torch.nn import functional

    student = functional.log_softmax(precise(student_logits) / temperature, dim=-1)
    teacher = functional.log_softmax(precise(teacher_logits.detach()) / temperature, dim=-1)
    if weights is not None:
        by_row = functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
        return mean_of_rows(by_row, weights) * temperature**2
    divergence = functional.kl_div(student, teacher, reduction="sum", log_target=True)
    return divergence * temperature**2 / divisor(divergence.new_tensor(float(len(student))))


def logit_mse(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean squared difference of the logits, over the batch and the labels.

    Tang et al. 2019 (arXiv 1903.12136). The paper calls it the mean squared error and writes the
    squared distance; the mean over the labels follows its words.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
        weights: (batch,), by how much each row counts; None where all count alike.
    """
    distances = (precise(student_logits) - precise(teacher_logits.detach())).square().mean(-1)
    return mean_of_rows(distances, weights)


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
