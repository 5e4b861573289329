"""Terms on a model's outputs: labels, logits, words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bertender.problems import SINGLE_LABEL
from bertender.training.heads import HEADS, Head
from distill.losses import NO_LABEL, hard_labels, logit_mse, soft_labels, token_soft_labels
from distill.losses.layer_maps import Pairs
from distill.losses.signals import Signal, Signals

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from bertender.training.examples import TensorBatch

__all__ = ["HardLabels", "LogitMatch", "MaskedWords", "SoftLabels", "SoftWords"]


class _FromLogits:
    """Terms that fit any two models of the same labels."""

    shared: ClassVar[str] = ""
    teaches: ClassVar[bool] = True

    def pairs(self, student: int, teacher: int) -> Pairs:
        return ()

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        return ""


@dataclass(frozen=True)
class SoftLabels(_FromLogits):
    """The teacher's softened distribution as the target; of taggers, at the first token of each
    word, which alone was taught a tag."""

    weight: float
    temperature: float
    loss: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = soft_labels
    """(student logits, teacher logits, temperature) -> scalar, a row of `losses`"""
    head: Head = HEADS[SINGLE_LABEL.name]
    """That of both models."""
    name: ClassVar[str] = "soft"
    needs: ClassVar[frozenset[Signal]] = frozenset({"logits"})

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        ours, theirs = (self.head.predicted(each.logits, batch) for each in (student, teacher))
        return self.loss(ours, theirs, self.temperature)


@dataclass(frozen=True)
class LogitMatch(_FromLogits):
    """The teacher's logits as they are as the target, with nothing to soften."""

    weight: float
    head: Head = HEADS[SINGLE_LABEL.name]
    """That of both models."""
    name: ClassVar[str] = "logits"
    needs: ClassVar[frozenset[Signal]] = frozenset({"logits"})

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        ours, theirs = (self.head.predicted(each.logits, batch) for each in (student, teacher))
        return logit_mse(ours, theirs)


@dataclass(frozen=True)
class HardLabels(_FromLogits):
    """The true labels as the target."""

    weight: float
    head: Head = HEADS[SINGLE_LABEL.name]
    """That of the student."""
    name: ClassVar[str] = "hard"
    needs: ClassVar[frozenset[Signal]] = frozenset()

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return self.head.hard_loss(student.logits, batch)


@dataclass(frozen=True)
class SoftWords(_FromLogits):
    """The teacher's softened distribution over the vocabulary, for every real token."""

    weight: float
    temperature: float
    masked_alone: bool = False
    """For the masked words alone."""
    name: ClassVar[str] = "soft"
    needs: ClassVar[frozenset[Signal]] = frozenset({"logits"})

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        asked = batch["targets"] != NO_LABEL if self.masked_alone else batch["attention_mask"]
        return token_soft_labels(student.logits, teacher.logits, asked, self.temperature)


@dataclass(frozen=True)
class MaskedWords(_FromLogits):
    """The words that were masked as the target, in phases that mask some."""

    weight: float
    name: ClassVar[str] = "words"
    needs: ClassVar[frozenset[Signal]] = frozenset()

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return hard_labels(student.logits, batch["targets"])
