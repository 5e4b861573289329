"""HEADS: the PyTorch side of each kind of problem: its head, its token columns and its losses.

PyTorch is imported in the functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bertender.core.config import Table
from bertender.core.errors import ConfigError
from bertender.models.classifier import model_inputs
from bertender.problems import PROBLEMS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import NO_LABEL, is_labelled
from bertender.problems.question_answering import QUESTION_ANSWERING, tokens_of_answer
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Split, Task
from bertender.text.batch import NO_WORD, Begun, Encode, Example, batched, encode_words
from bertender.text.long_texts import POOLINGS, TokenizeLong, windows_of
from bertender.text.tokenizer import longest_input
from bertender.text.windows import TokenizeWindows
from bertender.text.word_parts import continued_labels
from bertender.training.config import TaskTrainingConfig
from bertender.training.vector_losses import in_batch, ordered_cosines, prefixes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    TensorBatch = dict[str, torch.Tensor]
    Divergence = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

SPREAD = "spread"
"""A column: the standard deviation of the numbers to learn, the unit of their losses."""
ROWS = "rows"
"""A column: how many token rows an example has, where it may have several. They are below one
another in its token columns, and in those of a batch."""
POOLING = "pooling"
"""A column: how the logits of a text's windows are joined, by its place among POOLINGS."""
IMPOSSIBLE = -1e4
"""A logit of what cannot be: its probability is 0."""
NO_MORE = -1
"""Instead of a label beyond the last of a set."""
LEAST_WEIGHT = 1e-9
"""Of all labels of a batch together; less is none."""
EXAMPLES_AT_ONCE = 256
"""Of those that are tokenised together."""
PREDICTING = "predicting"
"""A token column: 1 at each token with logits of its own. Where words have labels, it is the first
of each word; of a question and its context, the first of all and those of the context."""

Columns = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class LabelLoss:
    """How a loss with labels counts them."""

    weights: tuple[float, ...] = ()
    """Of each label; none where all weigh the same."""
    smoothing: float = 0.0
    """Share of the true label that is spread over all (Szegedy et al. 2016, arXiv 1512.00567,
    section 7)."""


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
            divergence: of distributions (rows, classes); by default `soft_labels`.
        """
        ours, theirs = (self.predicted(each, batch) for each in (student, teacher))
        return (divergence or soft_labels)(ours, theirs, temperature)

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
        return logit_mse(ours, theirs)

    def summed_loss(self, model: torch.nn.Module, batch: TensorBatch) -> torch.Tensor:
        """Return the sum of the losses of all predictions, each of which keeps its own gradient."""
        logits = self.logits(model(**model_inputs(model, batch)), batch)
        return self.hard_loss(logits, batch) * len(self.predicted(logits, batch))


class TextHead(Head):
    """One row of logits for each text or pair of texts."""

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        if pooling := windows_of(tokenizer):
            return _in_windows(split, tokenizer, pooling, self.columns(split.label_ids))
        texts = [list(column) for column in zip(*split.examples, strict=True)]
        longest = longest_input(tokenizer)
        tokens = tokenizer(*texts, truncation=True, max_length=longest, padding=False)
        return tokens, self.columns(split.label_ids)

    def columns(self, targets: Sequence[Any]) -> Columns:
        """Return the columns of labels."""
        return {"labels": targets}

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return one row for each text; those of its windows are pooled."""
        import torch

        if POOLING not in batch:
            return logits
        own = logits.split(batch[ROWS].tolist())
        by_max = bool(batch[POOLING][0])
        return torch.stack([each.amax(0) if by_max else each.mean(0) for each in own])


def _in_windows(
    split: Split, tokenizer: PreTrainedTokenizerBase, pooling: str, columns: Columns
) -> tuple[Columns, Columns]:
    """Return the tokens of the windows of texts, and the columns next to them."""
    encode = TokenizeLong(tokenizer)
    windows = encode.windows(split.examples)
    tokens = {
        "input_ids": [[each.ids.tolist() for each in own] for own in windows],
        "token_type_ids": [[each.type_ids.tolist() for each in own] for own in windows],
        "attention_mask": [[[1] * len(each.ids) for each in own] for own in windows],
    }
    own = [*POOLINGS].index(pooling)
    return (
        {name: column for name, column in tokens.items() if encode.reads(name)},
        {**columns, ROWS: [*map(len, windows)], POOLING: [own] * len(windows)},
    )


class LabelHead(TextHead):
    """One label of several."""

    problem = SINGLE_LABEL.name
    learns_classes = True


class SetHead(TextHead):
    """Any number of labels, each there or not by a probability of its own.

    A prediction is of a label, and drawn from two classes: a softmax over 0 and a logit is the
    logit's sigmoid, so that all that learns distributions learns these.
    """

    problem = MULTI_LABEL.name
    learns_classes = True
    padding: Mapping[str, int] = {"labels": NO_MORE}

    def columns(self, targets: Sequence[Sequence[int]]) -> Columns:
        return {"labels": [list(target) or [NO_MORE] for target in targets]}

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the binary cross-entropy with the labels, the mean over texts and labels."""
        import torch
        from torch.nn import functional

        numbers = batch["labels"]  # (batch, labels of the largest set)
        truth = torch.zeros(len(logits), logits.shape[-1] + 1, device=logits.device)
        truth.scatter_(1, numbers.where(numbers >= 0, logits.shape[-1]), 1.0)
        truth, how = truth[:, :-1], self.label_loss
        losses = functional.binary_cross_entropy_with_logits(
            precise(logits),
            truth * (1 - how.smoothing) + how.smoothing / 2,
            reduction="none",
            pos_weight=torch.tensor(how.weights, device=logits.device) if how.weights else None,
        )
        known = numbers[:, 0] != NO_LABEL
        return (losses.mean(-1) * known).sum() / known.sum().clamp(min=1)

    def balanced(self, task: Task) -> tuple[float, ...]:
        """Return the weight of each label where it is there, so that it has the same sum as where
        it is not; 1 for one that no training text has."""
        texts = sum(map(is_labelled, task.train.label_ids))
        return tuple((texts - count) / count if count else 1.0 for count in label_counts(task))

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        import torch

        return torch.stack([torch.zeros_like(logits), logits], dim=-1).flatten(0, -2)

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(logits) == 1:
            return logits[0]
        mean = averaged_distributions([self.predicted(each, {}) for each in logits])
        return (mean[:, 1] - mean[:, 0]).view_as(logits[0])


class NumberHead(TextHead):
    """A number. Losses are in standard deviations of the numbers to learn, so that prices weigh as
    much as similarities do."""

    problem = REGRESSION.name
    softens = False

    def columns(self, targets: Sequence[float]) -> Columns:
        spread = spread_of(targets)
        return {
            "labels": [float(target) for target in targets],
            SPREAD: [spread] * len(targets),
        }

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[float],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Let a new head give numbers about the mean, as far from it as those to learn.

        A head that the model has from its source and that has learned, whose bias is not 0 any
        more, keeps its weights.
        """
        import torch

        layer, known = output_layer(model, 1), output_layer(source or model, 1)
        numbers = [number for number in targets if is_labelled(number)]
        if layer is None or layer.bias is None or not numbers:
            return
        if known is not None and torch.equal(known.weight, layer.weight) and bool(known.bias.any()):
            return
        with torch.no_grad():
            layer.weight *= spread_of(numbers)
            layer.bias.fill_(float(np.mean(numbers)))

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the mean squared error."""
        labels = batch["labels"][:, None]
        known = labels.isfinite()
        losses = self._distances(logits, labels.where(known, 0.0), batch)
        return (losses * known).sum() / known.sum().clamp(min=1)

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        return sum(logits[1:], start=logits[0]) / len(logits)

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the numbers in standard deviations, (batch, 1)."""
        return precise(logits) / batch[SPREAD][:, None]

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        """Return the mean squared distance: a number is no distribution, and nothing is softened.

        A softmax over one number is 1, and a divergence of it always 0.
        """
        return self._distances(student, teacher.detach(), batch).mean()

    def _distances(
        self, numbers: torch.Tensor, wanted: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        moved = (precise(numbers) - precise(wanted)) / batch[SPREAD][:, None]
        return moved.square()


class VectorHead(Head):
    """A vector, learned by the cosines of pairs of texts, in each of its first PARTS alike, so that
    it can be cut (Kusupati et al. 2022, arXiv 2205.13147)."""

    problem = SENTENCE_EMBEDDING.name
    several_rows = True
    softens = False

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Sequence[Any]], Columns]:
        """Return the tokens of each text, a list of rows for each example."""
        counts = [len(example) for example in split.examples]
        longest = longest_input(tokenizer)
        texts = [*chain(*split.examples)]
        tokens = tokenizer(texts, truncation=True, max_length=longest, padding=False)
        ends = [0, *accumulate(counts)]
        columns = {
            name: [rows[start:end] for start, end in pairwise(ends)]
            for name, rows in tokens.items()
        }
        return columns, {"labels": [*map(float, split.label_ids)], ROWS: counts}

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[float],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Make vectors as the source does."""
        if source is not None and hasattr(source, "vector"):
            model.vector = source.vector

    def averaged(self, logits: Sequence[Any]) -> Any:
        """Return the vectors of one model; those of several have directions of their own."""
        (own,) = logits
        return own

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the loss of the pairs of a batch; texts alone have none.

        That of pairs with numbers is `ordered_cosines`, and that of pairs without `in_batch`.

        Args:
            logits: vectors (rows, dimensions).
            batch: with ROWS (batch) and `labels` (batch).
        """
        import torch

        counts, labels = batch[ROWS], batch["labels"]
        is_pair = (counts == 2) & ~labels.isnan()
        firsts = (counts.cumsum(0) - counts)[is_pair]
        scores = labels[is_pair]
        known = scores.isfinite()
        ids = batch["input_ids"][firsts + 1]
        losses = []
        for part in prefixes(logits):
            first, second = part[firsts], part[firsts + 1]
            cosines = (first * second).sum(-1)
            losses.append(
                ordered_cosines(cosines[known], scores[known])
                + in_batch(first[~known], second[~known], ids[~known])
            )
        return torch.stack(losses).mean()

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        """Return the distance from the teacher's vectors, of all texts.

        Of vectors as wide it is the squared distance of the two (Reimers and Gurevych 2020, arXiv
        2004.09813), which is twice one minus their cosine. Else it is that of their cosines with
        the other texts of the batch (Tung and Mori 2019, arXiv 1907.09682).
        """
        from torch.nn import functional

        ours, theirs = (
            functional.normalize(precise(each), dim=-1) for each in (student, teacher.detach())
        )
        if ours.shape[-1] != theirs.shape[-1]:
            ours, theirs = (each @ each.T for each in (ours, theirs))
        return (ours - theirs).square().sum(-1).mean()

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        return self.soft_loss(student, teacher, batch, 1.0)


class ChoiceHead(LabelHead):
    """One of several choices, each a token row with a score: a softmax over those of a question."""

    problem = MULTIPLE_CHOICE.name
    several_rows = True
    learns_classes = False  # no place is rare because of what stands there

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Sequence[Any]], Columns]:
        tokens, counts = token_rows(MULTIPLE_CHOICE.encoder(tokenizer), split.examples)
        return tokens, {**self.columns(split.label_ids), ROWS: counts}

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the scores (rows, 1) as logits (batch, choices)."""
        return logits.view(len(batch[ROWS]), -1)

    def of_examples(self, cached: torch.Tensor) -> torch.Tensor:
        return cached.squeeze(-1)

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean of logits (examples, choices), or of cached ones, as they are shaped."""
        return averaged_distributions([each.flatten(1) for each in logits]).view_as(logits[0])


class TagHead(Head):
    """A tag for each word, at its first token; later parts of a word continue its tag."""

    problem = TOKEN_CLASSIFICATION.name
    learns_classes = True
    padding: Mapping[str, int] = {"labels": NO_LABEL, PREDICTING: 0}

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        tokens, words = encode_words(tokenizer, split.examples)
        later = continued_labels(tokenizer) or ()

        def label(begun: Begun | None, tags: Sequence[int]) -> int:
            if begun is None:
                return NO_LABEL
            tag = tags[begun.word]
            return later[tag] if begun.offset and tag != NO_LABEL else tag

        labels = [
            [label(begun, tags) for begun in row]
            for row, tags in zip(words, split.label_ids, strict=True)
        ]
        starts = [[int(begun is not None) for begun in row] for row in words]
        return tokens, {"labels": labels, PREDICTING: starts}

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        return logits[batch[PREDICTING].bool()]


class AnswerHead(Head):
    """Where an answer starts and where it ends: each is one of the tokens of a window.

    A window without the answer has both at its first token. Each window is an example of its own.
    """

    problem = QUESTION_ANSWERING.name
    padding: Mapping[str, int] = {PREDICTING: 0}

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Sequence[Any]], Columns]:
        windows = TokenizeWindows(tokenizer).windows(split.examples)
        own: Columns = {
            "input_ids": [each.ids.tolist() for each in windows.encodings],
            "token_type_ids": [each.type_ids.tolist() for each in windows.encodings],
            "attention_mask": [[1] * len(each.ids) for each in windows.encodings],
        }
        tokens = {name: own[name] for name in own if name in tokenizer.model_input_names}
        targets = (split.label_ids[owner] for owner in windows.owners)
        return tokens, {
            "labels": [
                list(tokens_of_answer(places, target)) if is_labelled(target) else [NO_LABEL] * 2
                for places, target in zip(windows.places, targets, strict=True)
            ],
            PREDICTING: [(places != NO_WORD).astype(int).tolist() for places in windows.places],
        }

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the cross-entropy with start and end, the mean of both and over windows."""
        return hard_labels(self.predicted(logits, batch), batch["labels"].flatten())

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return start and end of each window below one another, (2 windows, seq)."""
        others = ~batch[PREDICTING].bool()[..., None]
        # finite: 0 times it is 0
        return precise(logits).masked_fill(others, IMPOSSIBLE).transpose(1, 2).flatten(0, 1)


HEADS = Table[Head](
    "head",
    {
        head.problem: head
        for head in (
            *(LabelHead(), SetHead(), NumberHead(), TagHead(), VectorHead(), AnswerHead()),
            ChoiceHead(),
        )
    },
)


def spread_of(numbers: Sequence[float]) -> float:
    """Return the standard deviation of those that are known, or 1 where they do not differ."""
    known = [number for number in numbers if is_labelled(number)]
    return (float(np.std(known)) if known else 0.0) or 1.0


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


def output_layer(model: torch.nn.Module, outputs: int) -> torch.nn.Linear | None:
    """Return the layer that gives a classifier's logits: the last with so many outputs."""
    import torch

    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    return next((each for each in reversed(layers) if each.out_features == outputs), None)


@contextmanager
def exact_numbers(model: torch.nn.Module) -> Iterator[None]:
    """Let the layer that gives numbers compute in float32, where others compute in bfloat16.

    bfloat16 has 8 bits: of numbers about 2000, steps of 8, however little they differ.
    """
    import torch

    layer = output_layer(model, 1)
    if layer is None:
        yield
        return
    forward, outer = layer.forward, vars(layer).get("forward")

    def exact(states: torch.Tensor) -> torch.Tensor:
        with torch.autocast(states.device.type, enabled=False):
            return forward(states.to(layer.weight.dtype))

    vars(layer)["forward"] = exact
    try:
        yield
    finally:
        del vars(layer)["forward"]
        if outer is not None:  # it was exact before
            vars(layer)["forward"] = outer


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


def label_counts(task: Task) -> list[int]:
    """Return how often each label is there in the training texts, of words in words."""
    targets = (target for target in task.train.label_ids if is_labelled(target))
    counts = Counter(number for target in targets for number in task.problem.labels_of(target))
    return [counts[number] for number in range(len(task.labels))]


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
