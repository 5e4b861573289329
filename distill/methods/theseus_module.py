"""Training modules of BERT-of-Theseus: which modules of the predecessor are replaced in a step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import encoder_layers, family_of
from bertender.training.examples import TensorBatch, model_inputs
from distill.losses.signals import Signals
from distill.losses.terms import Term
from distill.methods.phase import Phase

__all__ = ["HalfReplacing", "Replaced", "Replacing"]

FIRST_PROBABILITY = 0.3
CONSTANT_PROBABILITY = 0.5
SHARE_OF_REPLACING = 2 / 3


class _Module(nn.Module):
    """A successor's layer that replaces some of the predecessor's; alone in eval mode."""

    differs_in_training: ClassVar[bool] = True

    def __init__(self, successor: nn.Module, predecessor: list[nn.Module]) -> None:
        super().__init__()
        self.successor = successor
        self.predecessor = nn.ModuleList(predecessor)
        self.replaced = True

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.replaced or not self.training:
            return self.successor(hidden, *args, **kwargs)
        for layer in self.predecessor:
            output = layer(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        return output


class Replacing(nn.Module):
    """The training module: the student with modules that are drawn again in each step."""

    def __init__(
        self, student: PreTrainedModel, teacher: PreTrainedModel, term: Term, seed: int, steps: int
    ) -> None:
        super().__init__()
        self.student = student
        self.term, self.seed, self.steps = term, seed, steps
        successors, predecessors = encoder_layers(student), encoder_layers(teacher)
        bounds = [i * len(predecessors) // len(successors) for i in range(len(successors) + 1)]
        student.requires_grad_(False)
        self.drawn = [
            _Module(layer.requires_grad_(True), predecessors[start:end])
            for layer, (start, end) in zip(successors, pairwise(bounds), strict=True)
        ]
        self._place(self.drawn)

    @classmethod
    def of(
        cls,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        phase: Phase,
        *,
        seed: int,
        steps: int,
    ) -> Self:
        """Build the training module of a phase, which has one term."""
        (term,) = phase.terms
        return cls(student, teacher, term, seed, steps)

    @staticmethod
    def probability(passed: float) -> float:
        """Return the successor's, when this share of the phase has passed, 0 to 1 (eq. 5)."""
        rate = (1 - FIRST_PROBABILITY) / SHARE_OF_REPLACING
        return min(1.0, FIRST_PROBABILITY + rate * passed)

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> dict[str, torch.Tensor]:
        """Return the task's loss with the modules that this step draws."""
        self._draw(step)
        logits = self.student(**model_inputs(self.student, batch)).logits
        loss = self.term.weight * self.term(Signals(logits), teacher, batch)
        return {self.term.name: loss + self._nothing()}

    def _draw(self, step: int) -> None:
        generator = torch.Generator().manual_seed(hash((self.seed, step)))
        draws = torch.rand(len(self.drawn), generator=generator)
        probability = self.probability(step / self.steps)
        for module, draw in zip(self.drawn, draws.tolist(), strict=True):
            module.replaced = draw < probability

    def _nothing(self) -> torch.Tensor:
        """Return 0 with a gradient of 0 for every weight, whichever modules were drawn."""
        learning = (weight for module in self.drawn for weight in module.successor.parameters())
        return torch.stack([weight.sum() * 0 for weight in learning]).sum()

    def finished(self) -> PreTrainedModel:
        """Return the student with its own layers and nothing of the predecessor."""
        self._place([module.successor for module in self.drawn])
        self.student.requires_grad_(True)
        return self.student

    def _place(self, layers: list[Any]) -> None:
        """Replace the student's layers."""
        place = self.student.base_model.get_submodule(family_of(self.student).layers)
        assert isinstance(place, nn.ModuleList)
        for index, layer in enumerate(layers):
            place[index] = layer


class HalfReplacing(Replacing):
    """Each module is the successor's in half of the steps."""

    @staticmethod
    def probability(passed: float) -> float:
        return CONSTANT_PROBABILITY


class Replaced(Replacing):
    """The successor is alone."""

    @staticmethod
    def probability(passed: float) -> float:
        return 1.0
