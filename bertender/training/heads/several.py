"""The head for several kinds of problems that share an encoder: all their heads, side by side."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL, HeadTargets, is_labelled
from bertender.models.classifier import model_inputs
from bertender.problems.several_heads import SeveralHeads
from bertender.tasks.task import Split, Task
from bertender.training.config import TaskTrainingConfig
from bertender.training.heads.head import POOLING, PREDICTING, ROWS, Columns, Head
from bertender.training.heads.numbers import NumberHead, begin_numbers, check_size

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from bertender.training.heads.head import Divergence, TensorBatch

SHARED_COLUMNS = frozenset((PREDICTING, ROWS, POOLING))
"""Columns that are not specific to a head."""


class SeveralHead(Head):
    """Each head has its own loss on its own labels, and the mean of all is minimised (MT-DNN, Liu
    et al. 2019, arXiv 1901.11504, algorithm 1, where a batch has the labels of one task).

    Args:
        kind: kind of problem.
        heads: head of each kind by its name.
    """

    def __init__(self, kind: SeveralHeads, heads: Mapping[str, Head]) -> None:
        self.kind = kind
        self.problem = kind.name
        self.heads = dict(heads)
        self.learns_classes = any(head.learns_classes for head in heads.values())
        self.softens = any(head.softens for head in heads.values())
        self.padding = {
            column if column in SHARED_COLUMNS else _column(name, column): value
            for name, head in heads.items()
            for column, value in head.padding.items()
        }

    @property
    def per_token(self) -> bool:
        return self.kind.per_token

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        if self.per_token and tokenizer.padding_side == "left":
            raise ConfigError(
                f"heads {', '.join(self.heads)}: some read the first token of a text, and "
                f"{type(tokenizer).__name__} has none there. Give another model."
            )
        targets = dict(zip(self.heads, zip(*split.label_ids, strict=True), strict=True))
        base = self.kind.base_name
        tokens, of_base = self.heads[base].tokenize(Split(split.examples, targets[base]), tokenizer)
        columns: dict[str, Sequence[Any]] = {
            # whether an example has a label for any head
            "labels": [0 if is_labelled(target) else NO_LABEL for target in split.label_ids]
        }
        for name, head in self.heads.items():
            own = of_base if name == base else head.columns(targets[name])
            for column, values in own.items():
                columns[column if column in SHARED_COLUMNS else _column(name, column)] = values
        if self.per_token:  # heads of texts read the first token
            columns[PREDICTING] = [[1, *row[1:]] for row in columns[PREDICTING]]
        return tokens, columns

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        return self.heads[self.kind.base_name].joined(logits, batch)

    def known_targets(self, targets: Sequence[Any], logits: Callable[[], Any]) -> Sequence[Any]:
        columns = [*zip(*targets, strict=True)]
        for place, (name, head) in enumerate(self.heads.items()):
            own = functools.partial(self._of_head, name, logits)
            columns[place] = tuple(head.known_targets(columns[place], own))
        return tuple(map(HeadTargets, zip(*columns, strict=True)))

    def _of_head(self, name: str, logits: Callable[[], Any]) -> torch.Tensor:
        """Return the logits of one head on all texts, given those of all heads."""
        import torch

        found, own = logits(), self.kind.slices[name]
        return torch.stack([each[0] for each in found])[:, own] if self.per_token else found[:, own]

    def spreads(self, targets: Sequence[Any]) -> Mapping[str, float]:
        return {
            _column(name, column): unit
            for (name, head), own in zip(
                self.heads.items(), zip(*targets, strict=True), strict=True
            )
            for column, unit in head.spreads(own).items()
        }

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[Any],
        source: torch.nn.Module | None = None,
    ) -> None:
        numbers = {
            self.kind.slices[name].start: [target[place] for target in targets]
            for place, (name, head) in enumerate(self.heads.items())
            if isinstance(head, NumberHead)
        }
        if numbers:
            outputs = max(own.stop for own in self.kind.slices.values())
            begin_numbers(model, numbers, outputs, source)

    def configured(self, config: TaskTrainingConfig, task: Task) -> Self:
        for name, head in self.heads.items():
            if isinstance(head, NumberHead):
                own = task.of_head(name)
                check_size((own.train if len(own.train) else own.choices).label_ids, name)
        if not self.learns_classes:
            return super().configured(config, task)
        head = copy.copy(self)
        head.heads = {
            name: own.configured(config, task.of_head(name)) if own.learns_classes else own
            for name, own in self.heads.items()
        }
        return head

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        return self._mean(
            lambda head, own, name: head.hard_loss(own, self._batch(name, batch)), logits
        )

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        return self._mean(
            lambda head, ours, theirs, name: head.soft_loss(
                ours, theirs, self._batch(name, batch), temperature, divergence
            ),
            student,
            teacher,
        )

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        return self._mean(
            lambda head, ours, theirs, name: head.logit_loss(
                ours, theirs, self._batch(name, batch)
            ),
            student,
            teacher,
        )

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        import torch

        if len(logits) == 1:
            return logits[0]
        own = (
            head.averaged([each[..., self.kind.slices[name]] for each in logits])
            for name, head in self.heads.items()
        )
        return torch.cat([*own], dim=-1)

    def side_by_side(self, logits: Mapping[str, Any]) -> Any:
        """Return the logits of all heads, given those of models with one head each.

        Args:
            logits: by head, (texts, labels); for the head that labels words, (seq, labels) per
                text.
        """
        import torch

        own = [logits[name] for name in self.heads]
        if not self.per_token:
            return torch.cat(own, dim=-1)
        *of_texts, of_words = own
        found = []
        for first, words in zip(torch.cat(of_texts, dim=-1), of_words, strict=True):
            row = torch.nn.functional.pad(words, (len(first), 0))
            row[0, : len(first)] = first
            found.append(row)
        return tuple(found)

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        import torch

        # numbers have no certainty
        own = [head.entropy(own) for _, head, own in self._split(logits) if head.softens]
        return torch.stack(own).mean(0)

    def summed_loss(self, model: torch.nn.Module, batch: TensorBatch) -> torch.Tensor:
        logits = self.logits(model(**model_inputs(model, batch)), batch)
        total = logits.new_zeros(())
        for name, head, own in self._split(logits):
            of_head = self._batch(name, batch)
            total = total + head.hard_loss(own, of_head) * head.labelled(own, of_head)
        return total

    def _mean(self, loss: Callable[..., torch.Tensor], *logits: torch.Tensor) -> torch.Tensor:
        """Return the mean of a loss over heads, given the logits of one or two models."""
        import torch

        losses = [
            loss(head, own, *(each for _, _, each in others), name)
            for (name, head, own), *others in zip(*map(self._split, logits), strict=True)
        ]
        return torch.stack(losses).mean(0)

    def _split(self, logits: torch.Tensor) -> Iterator[tuple[str, Head, torch.Tensor]]:
        """Yield each head with its name and its logits."""
        for name, head in self.heads.items():
            own = logits[..., self.kind.slices[name]]
            first_alone = self.per_token and not self.kind.heads[name].labels_words
            yield name, head, own[:, 0] if first_alone else own

    def _batch(self, name: str, batch: TensorBatch) -> TensorBatch:
        """Return a batch with the columns of one head under their original names."""
        end = _column(name, "")
        own = {
            column.removesuffix(end): values
            for column, values in batch.items()
            if column.endswith(end)
        }
        if PREDICTING in batch:
            own[PREDICTING] = batch[PREDICTING].clone()
            own[PREDICTING][:, 0] = 0
        return {**batch, **own}


def _column(name: str, column: str) -> str:
    return f"{column}:{name}"
