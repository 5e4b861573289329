"""Terms of training in two vocabularies at once, with a copy of the teacher that learns too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distill.losses import vocabulary_labels, weight_mse
from distill.losses.layer_maps import LayerMap, Pairs
from distill.losses.signals import Signal, Signals
from distill.losses.terms.layers import unmatched

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from bertender.training.examples import TensorBatch

__all__ = ["MixedWords", "ProjectedWeights"]


@dataclass(frozen=True)
class MixedWords:
    """The masked words of a row in both vocabularies as the target of the teacher's copy."""

    weight: float
    name: ClassVar[str] = "mixed"
    teaches: ClassVar[bool] = False
    needs: ClassVar[frozenset[Signal]] = frozenset()
    shared: ClassVar[str] = ""

    def pairs(self, student: int, teacher: int) -> Pairs:
        return ()

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        return ""

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        own = student.logits.shape[-1]
        entries = teacher.logits.shape[-1] - own, own
        return vocabulary_labels(teacher.logits, batch["mixed_targets"], entries)


@dataclass(frozen=True)
class ProjectedWeights:
    """The teacher's weights as the target of the student's, through projections that are learned.

    Word embeddings in the student's vocabulary, and all weights of the layers that are matched.
    """

    name: str
    weight: float
    layers: LayerMap
    projects_student: bool
    """The student's weights are brought to the teacher's size; else the teacher's to its size."""
    teaches: ClassVar[bool] = True
    needs: ClassVar[frozenset[Signal]] = frozenset()
    shared: ClassVar[str] = ""

    def pairs(self, student: int, teacher: int) -> Pairs:
        return ()  # of signals none

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        from bertender.models.families import FAMILIES

        if missing := unmatched(self.name, self.layers, student, teacher, False):
            return missing
        family = FAMILIES.get(teacher.model_type)
        if family and family.plain_layers:
            return ""
        plain = sorted(name for name, row in FAMILIES.items() if row.plain_layers)
        return (
            f"term {self.name!r} compares the weights of layers one by one, and those of a "
            f"{teacher.model_type!r} teacher are of its own kind. Give a teacher of these: "
            f"{', '.join(plain)}"
        )

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return weight_mse(student.weights[self.name], teacher.weights[self.name])
