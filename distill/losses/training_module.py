"""Training module of distillation: the student, and what only its training needs.

The loss is computed inside the module, so that a distributed run sees which parameters it used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.training.examples import TensorBatch
from distill.losses.signals import Signals, read_signals
from distill.losses.terms import Match, Term, wanted_by

__all__ = ["TrainingModule"]


class TrainingModule(nn.Module):
    """A student with the projections that bring its states to the teacher's width.

    Args:
        student: the model that is written in the end.
        terms: the loss; those of weight 0 are left out.
        projections: by the signal that they bring to the teacher's width, for all terms that want
            it projected; trained with the student.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        terms: Sequence[Term],
        projections: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.projections = nn.ModuleDict(projections or {})
        self.terms = tuple(term for term in terms if term.weight)

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
        """Build the training module of a phase, with new projections drawn from `seed`.

        States as wide as the teacher's are compared as they are.
        """
        torch.manual_seed(seed)
        widths = student.config.hidden_size, teacher.config.hidden_size
        projected: set[str] = {
            term.signal
            for term in phase.terms
            if isinstance(term, Match) and term.projected and term.weight
        }
        wanted = sorted(projected) if widths[0] != widths[1] else []
        return cls(student, phase.terms, {signal: nn.Linear(*widths) for signal in wanted})

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> dict[str, torch.Tensor]:
        """Return the weighted parts of the loss."""
        depth = self.student.config.num_hidden_layers
        wanted, _ = wanted_by(self.terms, depth, teacher.depth)
        signals = read_signals(self.student, batch, wanted)
        return {
            term.name: term.weight * term(self._projected(term, signals), teacher, batch)
            for term in self.terms
        }

    def finished(self) -> PreTrainedModel:
        """Return the student, without the modules of its training."""
        return self.student

    def _projected(self, term: Term, signals: Signals) -> Signals:
        if not (isinstance(term, Match) and term.projected and term.signal in self.projections):
            return signals
        projection = self.projections[term.signal]
        states = {layer: projection(states) for layer, states in signals.hidden_states.items()}
        return replace(signals, hidden_states=states)
