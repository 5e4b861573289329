"""Head: what all kinds of problem have of the head of a model, and of the columns of its training.

PyTorch is imported in the functions: methods and their settings name losses without loading it."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from bertender.core.errors import ConfigError
from bertender.metrics.targets import is_labelled
from bertender.models.classifier import model_inputs
from bertender.problems import PROBLEMS
from bertender.tasks.task import Split, Task
from bertender.text.batch import Encode, Example, batched
from bertender.training.config import TaskTrainingConfig
from bertender.training.heads.losses import (
    LabelLoss,
    averaged_distributions,
    hard_labels,
    logit_mse,
    soft_labels,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    TensorBatch = dict[str, torch.Tensor]
    Divergence = Callable[..., torch.Tensor]

SPREAD = "spread"
"""A column: the standard deviation of the numbers to learn, the unit of their losses."""
ROWS = "rows"
"""A column: how many token rows an example has, where it may have several. They are below one
another in its token columns, and in those of a batch."""
POOLING = "pooling"
"""A column: how the logits of a text's windows are joined, by its place among POOLINGS."""
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
