"""The terms of a method's loss: each a row of data with its weight, computed on signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch

from bertender.core.examples import TensorBatch
from distill.losses import hard_labels, hidden_cosine, soft_labels
from distill.signals import Signals

__all__ = ["HardLabels", "HiddenCosine", "SoftLabels", "Term", "TeacherSignal"]

TeacherSignal = Literal["logits", "hidden_states"]


class Term(Protocol):
    """One part of a loss."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def needs(self) -> frozenset[TeacherSignal]:
        """What the teacher must give. Logits are kept on disk; the rest is computed online."""
        ...

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        """Return the unweighted loss, a scalar."""
        ...


@dataclass(frozen=True)
class SoftLabels:
    """The teacher's softened distribution as the target."""

    weight: float
    temperature: float
    name: ClassVar[str] = "soft"
    needs: ClassVar[frozenset[TeacherSignal]] = frozenset({"logits"})

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return soft_labels(student.logits, teacher.logits, self.temperature)


@dataclass(frozen=True)
class HardLabels:
    """The true labels as the target."""

    weight: float
    name: ClassVar[str] = "hard"
    needs: ClassVar[frozenset[TeacherSignal]] = frozenset()

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return hard_labels(student.logits, batch["labels"])


@dataclass(frozen=True)
class HiddenCosine:
    """The direction of the teacher's last hidden states as the target."""

    weight: float
    name: ClassVar[str] = "cosine"
    needs: ClassVar[frozenset[TeacherSignal]] = frozenset({"hidden_states"})

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return hidden_cosine(
            student.hidden_states[-1], teacher.hidden_states[-1], batch["attention_mask"]
        )
