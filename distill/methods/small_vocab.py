"""A smaller vocabulary (Zhao et al. 2019, arXiv 1909.11687v1): BERT-48 and BERT-192.

On a corpus (general distillation): the student is a BERT of the teacher's depth, 192 wide or
`--hidden-size 48`, over a WordPiece vocabulary of its own, 4,928 entries trained on the corpus.
Dual training (section 3.2): a copy of the teacher learns with the student to predict masked words
in rows that mix both vocabularies, word by word with p = 0.5, a softmax for each. So it finds
embeddings of the student's tokens among its own. The student reads its own tokens alone.
Shared projections (section 3.3): the student's weights, embeddings and layers, are brought to the
size of the copy's by matrices that all layers share, and pulled towards them. `up`, which the paper
finds the better one, is on; `--weights up=0,down=1` brings the copy's to the student's size.
On a task: labels alone, from that student; soft labels too with `--weights soft=1`.
Departures: a teacher without a head that predicts words is given a new one, which the copy learns;
no next-sentence prediction; the three losses of the corpus weigh the same; a dimension
that is alike in both models is not projected; of the embeddings only those of words are, and the
head that predicts words is not; a projected weight pulls the student and the projection, not the
copy; the mix of a row stays through all epochs; a
student of fewer layers learns from evenly spread ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import encoder_layers, family_of
from bertender.training.examples import TensorBatch, model_inputs
from distill.losses.layer_maps import uniform
from distill.losses.signals import Signals
from distill.losses.terms import (
    HardLabels,
    MaskedWords,
    MixedWords,
    ProjectedWeights,
    SoftLabels,
    Term,
)
from distill.methods.method import General, Method
from distill.methods.phase import Phase, one_phase
from distill.students import OWN_VOCABULARY_STUDENT, PRETRAINED_STUDENT
from distill.vocabularies.mixed import MIXED_INPUTS

__all__ = ["SMALL_VOCAB", "DualTraining", "SharedProjection"]

HIDDEN_SIZE = 192


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

    uses_teacher_layers: ClassVar[bool] = False

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


SMALL_VOCAB = Method(
    name="small-vocab",
    paper="Zhao et al. 2019, arXiv 1909.11687v1",
    student=PRETRAINED_STUDENT,
    phases=one_phase(HardLabels(weight=1.0), SoftLabels(weight=0.0, temperature=1.0)),
    settings={"epochs": 4, "learning_rate": 1e-4},
    general=General(
        student=OWN_VOCABULARY_STUDENT,
        phases=(
            Phase(
                "dual",
                (
                    MaskedWords(weight=1.0),
                    MixedWords(weight=1.0),
                    ProjectedWeights("up", 1.0, layers=uniform, projects_student=True),
                    ProjectedWeights("down", 0.0, layers=uniform, projects_student=False),
                ),
                masked=True,
                training_module=DualTraining,
            ),
        ),
        settings={"learning_rate": 5e-4, "hidden_size": HIDDEN_SIZE},
    ),
)
