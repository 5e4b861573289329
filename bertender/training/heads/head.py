"""Head: what all kinds of problem have of the head of a model, of its losses and its columns.

Losses are those with labels, softened, and of logits themselves. PyTorch is imported in the
functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from bertender.core.errors import ConfigError
from bertender.metrics.targets import NO_LABEL, is_labelled
from bertender.models.classifier import model_inputs
from bertender.problems import PROBLEMS
from bertender.tasks.task import Split, Task
from bertender.text.batch import Encode, Example, batched
from bertender.training.config import TaskTrainingConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    TensorBatch = dict[str, torch.Tensor]
    Divergence = Callable[..., torch.Tensor]


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


SPREAD = "spread"
"""A column: the standard deviation of the numbers to learn, the unit of their losses."""
ROWS = "rows"
"""A column: how many token rows an example has, where it may have several. They are below one
another in its token columns, and in those of a batch."""
POOLING = "pooling"
"""A column: how the logits of a text's windows are joined, by its place among WINDOW_POOLINGS."""
WEIGHT = "weight"
"""A column: how much an example counts in what is learned of the teacher, where they differ."""
PREDICTING = "predicting"
"""A token column: 1 at each token with logits of its own. Where words have labels, it is the first
of each word; of a question and its context, the first of all and those of the context."""


EXAMPLES_AT_ONCE = 256
"""Of those that are tokenised together."""

Columns = dict[str, Sequence[Any]]


class Head(ABC):
    """The head of a kind of problem, and its losses.

    The methods with a body here are those of a softmax over labels.
    """

    problem: str
    """The row of PROBLEMS."""
    padding: Mapping[str, int] = {}
    """Of the columns of labels that have a value for each token."""
    learns_classes: bool = False
    """Whether the loss with the labels is over classes, which `label_loss` may weigh and smooth."""
    label_loss: LabelLoss = LabelLoss()
    several_rows: bool = False
    """Whether an example may have several token rows."""
    softens: bool = True
    """Whether a temperature softens what it outputs: a distribution."""

    @property
    def per_token(self) -> bool:
        """Whether there are logits for each token of a text."""
        return bool(PROBLEMS[self.problem].per_token)

    @property
    def auto_class(self) -> Any:
        """The class of transformers that loads a model with this head."""
        from bertender.models.own_models import auto_class

        return auto_class(PROBLEMS[self.problem].model_class)

    @abstractmethod
    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        """Return the tokens of labelled examples, and the columns of labels next to them."""

    def columns(self, targets: Sequence[Any]) -> Columns:
        """Return the columns of labels that have one value an example."""
        return {"labels": targets}

    def known_targets(self, targets: Sequence[Any], logits: Callable[[], Any]) -> Sequence[Any]:
        """Return targets, with what a teacher says of the training texts where nobody has labelled
        any and their size must be known.

        Args:
            targets: of the training texts.
            logits: returns those of the teacher on them.
        """
        return targets

    def spreads(self, targets: Sequence[Any]) -> Mapping[str, float]:
        """Return the units of the losses of numbers, by column; see SPREAD."""
        return {}

    def begin(  # noqa: B027 - most heads are ready
        self,
        model: torch.nn.Module,
        targets: Sequence[Any],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Prepare a head that is about to be trained for the first time.

        Args:
            model: a classifier of this kind.
            targets: those to learn.
            source: what the model starts from; None for itself.
        """

    def logits(self, output: Any, batch: TensorBatch) -> torch.Tensor:
        """Return the logits of the examples of a batch, given the model's output on it."""
        return self.joined(output.logits, batch)

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the logits of the examples of a batch, given those of its token rows."""
        return logits

    def of_examples(self, cached: torch.Tensor) -> torch.Tensor:
        """Return the logits of examples, given those of a teacher as they are cached: where an
        example has several token rows, (examples, rows, outputs)."""
        return cached

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the loss with the labels; texts and words without one are left out."""
        return hard_labels(logits, batch["labels"], self.label_loss)

    def configured(self, config: TaskTrainingConfig, task: Task) -> Self:
        """Return the head with the loss that a config asks for.

        Raises:
            ConfigError: the loss of this kind has no classes to weigh or to smooth.
        """
        if not config.changes_labels:
            return self
        if not self.learns_classes:
            raise ConfigError(
                f"{config.as_set(config.changes_labels)}: for losses over labels, and task "
                f"{task.name!r} is one of {task.problem_type!r}. Leave out what is named."
            )
        weights = self.balanced(task) if config.class_weights else ()
        head = copy.copy(self)
        head.label_loss = LabelLoss(weights, config.label_smoothing)
        return head

    def balanced(self, task: Task) -> tuple[float, ...]:
        """Return a weight for each label, so that all have the same sum over the training texts;
        1 for one that none of these has."""
        counts = label_counts(task)
        occurring = sum(count > 0 for count in counts)
        return tuple(sum(counts) / (occurring * count) if count else 1.0 for count in counts)

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return a row for each prediction, (rows, classes).

        A prediction is drawn from the softmax of its row: what a student learns from, and what is
        summed.
        """
        return logits

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        """Return the distance from the teacher's predictions.

        Args:
            student, teacher: logits of the two models, of the examples of a batch.
            batch: that they are of.
            temperature: above 0; larger is softer.
            divergence: of distributions (rows, classes), their temperature and, where the rows
                differ in it, their weight; by default `soft_labels`.
        """
        ours, theirs = (self.predicted(each, batch) for each in (student, teacher))
        return (divergence or soft_labels)(ours, theirs, temperature, *row_weights(batch, ours))

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logits (examples, labels) of the mean prediction of several models; those of
        one stay as they are."""
        return averaged_distributions(logits)

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the mean entropy of each example's predictions, (examples,), as a share of the
        highest: 1 where all classes are as likely."""
        chances = self.predicted(logits, {}).double().log_softmax(-1)
        entropy = -(chances.exp() * chances).sum(-1) / math.log(chances.shape[-1])
        return entropy.view(len(logits), -1).mean(-1)

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        """Return the distance from the teacher's logits as they are, with nothing to soften."""
        ours, theirs = (self.predicted(each, batch) for each in (student, teacher))
        return logit_mse(ours, theirs, *row_weights(batch, ours))

    def summed_loss(self, model: torch.nn.Module, batch: TensorBatch) -> torch.Tensor:
        """Return the sum of the losses of all predictions, each of which keeps its own gradient."""
        logits = self.logits(model(**model_inputs(model, batch)), batch)
        return self.hard_loss(logits, batch) * len(self.predicted(logits, batch))


def row_weights(batch: TensorBatch, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the weight of each of an example's rows; nothing where all examples count alike."""
    if WEIGHT not in batch:
        return ()
    weights = batch[WEIGHT]
    return (weights.repeat_interleave(len(rows) // len(weights)),)


def token_rows(
    encode: Encode, examples: Sequence[Example]
) -> tuple[Mapping[str, Sequence[Any]], list[int]]:
    """Return token columns with a list of rows an example, as an endpoint has them, and how many
    rows each example has."""
    columns: dict[str, list[Any]] = {}
    counts: list[int] = []
    for some in batched(examples, EXAMPLES_AT_ONCE):
        batch = encode(some)
        real = batch.arrays["attention_mask"].astype(bool)
        for name, array in batch.arrays.items():
            rows = [own[place].tolist() for own, place in zip(array, real, strict=True)]
            columns.setdefault(name, []).extend(batch.by_example(rows))
        counts += batch.counts
    return columns, counts


def label_counts(task: Task) -> list[int]:
    """Return how often each label is there in the training texts, of words in words."""
    targets = (target for target in task.train.label_ids if is_labelled(target))
    counts = Counter(number for target in targets for number in task.problem.labels_of(target))
    return [counts[number] for number in range(len(task.labels))]
