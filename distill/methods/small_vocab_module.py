"""Training module of a smaller vocabulary: the student, a copy of the teacher, and projections."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import encoder_layers, family_of
from bertender.training.examples import TensorBatch, model_inputs
from distill.losses.signals import Signals
from distill.losses.terms import ProjectedWeights, Term
from distill.methods.phase import Phase
from distill.vocabularies.mixed import MIXED_INPUTS

__all__ = ["DualTraining", "SharedProjection"]


class SharedProjection(nn.Module):
    """Brings weights to other sizes by two matrices a pair of sizes, one from each side.

    A weight W (out, in) becomes L W R^T, a bias b becomes L b. Weights of the same sizes share the
    matrices; a dimension that stays as it is has none.

    Args:
        weights: those to be brought.
        targets: of the sizes that they are brought to.
    """

    def __init__(self, weights: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        super().__init__()
        sizes = {
            (side, size, target)
            for weight, aim in zip(weights, targets, strict=True)
            for side, (size, target) in enumerate(zip(weight.shape, aim.shape, strict=True))
            if size != target
        }
        matrices = {_name(*each): torch.empty(each[2], each[1]) for each in sorted(sizes)}
        self.matrices = nn.ParameterDict(
            {name: nn.init.orthogonal_(matrix) for name, matrix in matrices.items()}
        )

    def forward(self, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the weight at the size of the target."""
        for side, (size, aim) in enumerate(zip(weight.shape, target.shape, strict=True)):
            if size != aim:
                matrix = self.matrices[_name(side, size, aim)]
                weight = weight @ matrix.T if side else matrix @ weight
        return weight


def _name(side: int, size: int, target: int) -> str:
    return f"{'in' if side else 'out'}-{size}-{target}"


class DualTraining(nn.Module):
    """The student, a copy of its teacher that reads both vocabularies, and projections."""

    def __init__(
        self, student: PreTrainedModel, teacher: PreTrainedModel, terms: Sequence[Term]
    ) -> None:
        super().__init__()
        self.terms = tuple(term for term in terms if term.weight)
        self.student = student
        self.teacher = _reading_both(teacher, student.config.vocab_size)
        self.projections = nn.ModuleDict()
        for term in self._projected:
            self.projections[term.name] = SharedProjection(*self._weights(term))

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
        """Build the training module of a phase, with what is random in it drawn from `seed`."""
        torch.manual_seed(seed)
        return cls(student, teacher, phase.terms)

    @property
    def _projected(self) -> list[ProjectedWeights]:
        return [term for term in self.terms if isinstance(term, ProjectedWeights)]

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> dict[str, torch.Tensor]:
        """Return the weighted parts of the loss; outputs of the teacher itself are not read."""
        mixed = {name: batch[column] for name, column in MIXED_INPUTS.items()}
        # products of weights in full precision, whatever the models compute in
        with torch.autocast(batch["input_ids"].device.type, enabled=False):
            compared = {term.name: self._compared(term) for term in self._projected}
        ours, theirs = (
            Signals(logits, weights={name: sides[side] for name, sides in compared.items()})
            for side, logits in enumerate(
                (
                    self.student(**model_inputs(self.student, batch)).logits,
                    self.teacher(**mixed).logits,
                )
            )
        )
        return {term.name: term.weight * term(ours, theirs, batch) for term in self.terms}

    def finished(self) -> PreTrainedModel:
        """Return the student, without the copy and the projections."""
        return self.student

    def _compared(
        self, term: ProjectedWeights
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Return the student's and the copy's weights at one size."""
        weights, targets = self._weights(term)
        bring = self.projections[term.name]
        brought = [bring(*pair) for pair in zip(weights, targets, strict=True)]
        return (brought, targets) if term.projects_student else (targets, brought)

    def _weights(self, term: ProjectedWeights) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return what is projected, and what has the sizes that it is brought to."""
        depths = (self.student.config.num_hidden_layers, self.teacher.config.num_hidden_layers)
        mine, others = zip(*term.layers(*depths), strict=True)
        own = _weights_of(self.student, mine)
        entries = len(own[0])
        theirs = [weight.detach() for weight in _weights_of(self.teacher, others)]
        theirs[0] = theirs[0][-entries:]
        return (own, theirs) if term.projects_student else (theirs, own)


def _reading_both(teacher: PreTrainedModel, student_entries: int) -> PreTrainedModel:
    """Return a copy of a language model with new entries after its own, which learns."""
    both = copy.deepcopy(teacher).requires_grad_(True)
    # `vocab_size` is the number of rows of the table, not of the tokenizer's tokens
    both.resize_token_embeddings(teacher.config.vocab_size + student_entries, mean_resizing=False)
    return both


def _weights_of(model: PreTrainedModel, layers: Sequence[int]) -> list[torch.Tensor]:
    """Return the word embeddings, and all weights of some layers, counted from 1."""
    family, every = family_of(model), encoder_layers(model)
    parts = [family.layer_weights(every[number - 1]) for number in layers]
    words = model.base_model.get_parameter(f"{family.word_embeddings}.weight")
    return [words, *(weight for part in parts for weight in part.values())]
