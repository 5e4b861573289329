"""Training module of MobileBERT's progressive transfer: one layer of the student after another."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from transformers import PreTrainedModel

from bertender.models.families import family_of
from bertender.training.examples import TensorBatch
from bertender.training.learning_rates import Rates
from distill.losses.signals import Signals
from distill.losses.terms import Match
from distill.losses.training_module import TrainingModule

__all__ = ["LayerAfterLayer"]

RATE_AFTERWARDS = 0.1
"""Factor of the learning rate of layers that had their turn."""


class LayerAfterLayer(TrainingModule):
    """The training module of the transfer: in each step one pair of layers is matched."""

    turns: tuple[tuple[Match, ...], ...] = ()
    """The terms of each turn."""
    learning: tuple[int, ...] = ()
    """The student's layer of each turn, counted from 1."""
    steps: int = 1

    @classmethod
    def of(
        cls,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        phase: Any,
        *,
        seed: int,
        steps: int,
    ) -> Self:
        """Build the training module, with the turns of the layers."""
        training_module = super().of(student, teacher, phase, seed=seed, steps=steps)
        terms = [term for term in training_module.terms if isinstance(term, Match)]
        pairs = terms[0].pairs(student.config.num_hidden_layers, teacher.config.num_hidden_layers)
        training_module.turns = tuple(
            tuple(replace(term, only=turn) for term in terms) for turn in range(len(pairs))
        )
        training_module.learning = tuple(layer for layer, _ in pairs)
        training_module.steps = steps
        return training_module

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> dict[str, torch.Tensor]:
        """Return the weighted parts of the loss of the layers whose turn it is."""
        self.terms = self.turns[self.turn(step / self.steps)]
        return super().forward(batch, teacher, step)

    def turn(self, passed: float) -> int:
        """Return whose turn it is when this share of the steps has passed."""
        return min(int(passed * len(self.turns)), len(self.turns) - 1)

    @property
    def rates(self) -> Rates:
        """The rates of the student's layers; the embeddings go with the first."""
        base = f"student.{self.student.base_model_prefix}"
        layers = f"{base}.{family_of(self.student).layers}"
        depth = self.student.config.num_hidden_layers
        parts = {f"{layers}.{layer - 1}.": layer for layer in range(1, depth + 1)}
        return {
            part: partial(self.rate, layer)
            for part, layer in {f"{base}.embeddings.": 1, **parts}.items()
        }

    def rate(self, layer: int, passed: float) -> float:
        """Return the factor of a layer's learning rate; those above have no gradient yet."""
        turn = self.turn(passed)
        had_its_turn = turn > 0 and layer <= self.learning[turn - 1]
        return RATE_AFTERWARDS if had_its_turn else 1.0
