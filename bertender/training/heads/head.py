"""Head: the common part of all kinds of model heads, with their losses and columns.

Losses are with labels, softened, or on the logits. PyTorch is imported in the functions, so that
methods and their settings can name losses without loading it.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL, is_labelled
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
"""Smallest sum of label weights in a batch; less counts as none."""


@dataclass
class Part:
    """A part of a step's batch: that of a process, or one of several run in sequence."""

    number: int = 0
    """Its index among the parts that a process runs in sequence."""
    in_turn: bool = False
    """Whether there are several such parts."""
    averages: Sequence[torch.Tensor] = ()
    """Divisors for the sums in the means, in the order of the means: average counts over the parts
    of a batch. Without them, each sum is divided by the part's own count."""
    counts: list[torch.Tensor] = field(default_factory=list)
    """Counts of the means taken over this part, in order."""


PART: ContextVar[Part | None] = ContextVar("PART", default=None)
"""The part of a batch for which losses are being computed."""


@contextmanager
def parts_of_a_batch(part: Part | None = None) -> Iterator[Part]:
    """Take the means of losses in the block over all parts of a step's batch, given one part.

    Every process must compute the same losses in the block.
    """
    own = part or Part()
    token = PART.set(own)
    try:
        yield own
    finally:
        PART.reset(token)


def divisor(count: torch.Tensor) -> torch.Tensor:
    """Return the divisor for the mean of a loss over `count` tokens or rows, at least LEAST_WEIGHT.

    In a distributed run it is the average count over processes: the gradients of the processes are
    averaged, and so equal those of the mean over the whole batch. With a mean per process, a
    token's weight would depend on how few others its part has. The same holds for parts run in
    sequence.
    """
    import torch

    if (part := PART.get()) is not None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            count = count.detach().float()  # copies integers; the division copies floats
            count = count / torch.distributed.get_world_size()
            torch.distributed.all_reduce(count)
        part.counts.append(count.detach())
        if part.averages:
            count = part.averages[len(part.counts) - 1]
    return count.clamp(min=LEAST_WEIGHT)


def mean_of_rows(values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean of one value per row, over all parts of a step's batch.

    Args:
        values: values of the rows.
        weights: weights of the rows; empty for equal weights.
    """
    if weights is None:
        return values.sum() / divisor(values.new_tensor(float(values.numel())))
    return (values * weights.view_as(values)).sum() / divisor(weights.sum())


@dataclass(frozen=True)
class LabelLoss:
    """Weights and smoothing of labels in a loss."""

    weights: tuple[float, ...] = ()
    """Weight of each label; empty for equal weights."""
    smoothing: float = 0.0
    """Share of the true label to spread over all labels (Szegedy et al. 2016, arXiv 1512.00567,
    section 7)."""


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in at least float32: sums and exponentials lose too much in bfloat16."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def hard_labels(
    student_logits: torch.Tensor, label_ids: torch.Tensor, how: LabelLoss = LabelLoss()
) -> torch.Tensor:
    """Cross-entropy of the logits (batch, labels) with the true labels (batch).

    For tagging, (batch, seq, labels) with (batch, seq). Examples or tokens without a label
    (NO_LABEL) are left out; 0 if a batch has no labels. With weights, the mean is weighted.
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
        weights: (batch,), weight of each row; None for equal weights.
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
        weights: (batch,), weight of each row; None for equal weights.
    """
    distances = (precise(student_logits) - precise(teacher_logits.detach())).square().mean(-1)
    return mean_of_rows(distances, weights)


def averaged_distributions(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return logits (rows, classes) of the mean distribution; those of one model are unchanged.

    A distribution does not determine the level of its logits, and its logarithm has a different
    level for each text. The level, the mean over classes, is set to that of the teachers' logits,
    so that a student can be trained on the logits themselves: teachers that agree keep their
    logits.
    """
    import torch

    if len(logits) == 1:
        return logits[0]
    together = torch.stack(list(logits))  # (teachers, rows, classes)
    mean = together.log_softmax(-1).logsumexp(0)
    level = together.mean((0, -1)).unsqueeze(-1)  # (rows, 1)
    return mean - mean.mean(-1, keepdim=True) + level


SPREAD = "spread"
"""Column: standard deviation of the target numbers, the unit of their losses."""
ROWS = "rows"
"""Column: number of token rows of an example, if it may have several. They are concatenated in its
token columns, and in those of a batch."""
POOLING = "pooling"
"""Column: how the logits of a text's windows are pooled, as an index in WINDOW_POOLINGS."""
WEIGHT = "weight"
"""Column: weight of an example in learning from the teacher, if weights differ."""
PREDICTING = "predicting"
"""Token column: 1 at each token with its own logits. If words have labels, these are the first
token of each word; for a question and its context, the first token and those of the context."""


IMPOSSIBLE = -1e4
"""Logit of an impossible class, or score of a missing passage: its probability is 0."""
EXAMPLES_AT_ONCE = 256
"""Examples to tokenise together."""

Columns = dict[str, Sequence[Any]]


class Head:
    """The head for a kind of problem, and its losses.

    The methods implemented here are those of a softmax over labels.
    """

    problem: str
    """Its row of PROBLEMS."""
    padding: Mapping[str, int] = {}
    """Padding values of label columns with a value for each token."""
    learns_classes: bool = False
    """Whether the loss with the labels is over classes, which `label_loss` may weight and
    smooth."""
    label_loss: LabelLoss = LabelLoss()
    several_rows: bool = False
    """Whether an example may have several token rows."""
    softens: bool = True
    """Whether its output is a distribution, which a temperature softens."""

    @property
    def per_token(self) -> bool:
        """Whether there are logits for each token of a text."""
        return bool(PROBLEMS[self.problem].per_token)

    @property
    def auto_class(self) -> Any:
        """The class of transformers that loads a model with this head."""
        from bertender.models.own_models import auto_class

        return auto_class(PROBLEMS[self.problem].model_class)

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        """Return the tokens of labelled examples, a list of rows for each, and their label
        columns."""
        encode = PROBLEMS[self.problem].encoder(tokenizer)
        tokens, counts = token_rows(encode, split.examples)
        return tokens, {**self.columns(split.label_ids), ROWS: counts}

    def columns(self, targets: Sequence[Any]) -> Columns:
        """Return the label columns with one value per example."""
        return {"labels": targets}

    def known_targets(self, targets: Sequence[Any], logits: Callable[[], Any]) -> Sequence[Any]:
        """Return targets, with the teacher's outputs on the training texts if none is labelled and
        the size of targets must be known.

        Args:
            targets: targets of the training texts.
            logits: returns the teacher's logits on them.
        """
        return targets

    def spreads(self, targets: Sequence[Any]) -> Mapping[str, float]:
        """Return the units of losses of numbers, by column; see SPREAD."""
        return {}

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[Any],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Prepare a head before its first training.

        Args:
            model: classifier of this kind.
            targets: targets to learn.
            source: model that the weights are from; None for itself.
        """

    def logits(self, output: Any, batch: TensorBatch) -> torch.Tensor:
        """Return the logits for the examples of a batch, given the model's output."""
        return self.joined(output.logits, batch)

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the logits for the examples of a batch, given those of its token rows."""
        return logits

    def of_examples(self, cached: torch.Tensor) -> torch.Tensor:
        """Return the logits for examples, given a teacher's cached logits: if an example has
        several token rows, (examples, rows, outputs)."""
        return cached

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the loss with the labels, without unlabelled texts and words."""
        return hard_labels(logits, batch["labels"], self.label_loss)

    def configured(self, config: TaskTrainingConfig, task: Task) -> Self:
        """Return the head with the loss configured in the settings.

        Raises:
            ConfigError: the loss of this kind has no classes to weight or smooth.
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
        """Return a weight for each label, so that all have the same sum over the training texts; 1
        for labels that do not occur."""
        counts = label_counts(task)
        occurring = sum(count > 0 for count in counts)
        return tuple(sum(counts) / (occurring * count) if count else 1.0 for count in counts)

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return one row per prediction, (rows, classes).

        A row has the logits of a prediction's distribution, which students learn from.
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
            student, teacher: logits of the two models for the examples of a batch.
            batch: the batch.
            temperature: above 0; larger is softer.
            divergence: function of distributions (rows, classes), their temperature and, if rows
                have weights, their weights; by default `soft_labels`.
        """
        ours, theirs = (self.predicted(each, batch) for each in (student, teacher))
        return (divergence or soft_labels)(ours, theirs, temperature, *row_weights(batch, ours))

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logits (examples, labels) of the mean prediction of several models; those of
        one model are unchanged."""
        return averaged_distributions(logits)

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the mean entropy of each example's predictions, (examples,), as a share of the
        maximum: 1 if all classes are equally likely."""
        chances = self.predicted(logits, {}).double().log_softmax(-1)
        entropy = -(chances.exp() * chances).sum(-1) / math.log(chances.shape[-1])
        return entropy.view(len(logits), -1).mean(-1)

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        """Return the distance from the teacher's logits, without softening."""
        if not self.softens:
            return self.soft_loss(student, teacher, batch, 1.0)
        ours, theirs = (self.predicted(each, batch) for each in (student, teacher))
        return logit_mse(ours, theirs, *row_weights(batch, ours))

    def summed_loss(self, model: torch.nn.Module, batch: TensorBatch) -> torch.Tensor:
        """Return the sum of the losses of all predictions, so that each has its own gradient."""
        logits = self.logits(model(**model_inputs(model, batch)), batch)
        return self.hard_loss(logits, batch) * self.labelled(logits, batch)

    def labelled(self, logits: torch.Tensor, batch: TensorBatch) -> int:
        """Return the number of labelled predictions, whose mean loss `hard_loss` is."""
        return int((batch["labels"] != NO_LABEL).sum())


def row_weights(batch: TensorBatch, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the weight of each of the examples' rows; None for equal weights."""
    if WEIGHT not in batch:
        return ()
    weights = batch[WEIGHT]
    return (weights.repeat_interleave(len(rows) // len(weights)),)


def token_rows(
    encode: Encode, examples: Sequence[Example]
) -> tuple[Mapping[str, Sequence[Any]], list[int]]:
    """Return token columns with a list of rows per example, as at an endpoint, and each example's
    number of rows."""
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
    """Return how often each label occurs in the training texts; for tags, counted in words."""
    targets = (target for target in task.train.label_ids if is_labelled(target))
    counts = Counter(number for target in targets for number in task.problem.labels_of(target))
    return [counts[number] for number in range(len(task.labels))]
