"""Training modules: a student, and what only its training needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import encoder_layers, family_of
from bertender.training.examples import TensorBatch, model_inputs
from bertender.training.loop import Rates
from distill.losses.signals import Signals, read_signals
from distill.losses.terms import Match, ProjectedWeights, Term, wanted_by
from distill.methods.method import Phase
from distill.pretraining.mixed import MIXED_INPUTS

# --- from distill.losses.training_module
# Training module of distillation: the student, and what only its training needs.
#
# The loss is computed inside the module, so that a distributed run sees which parameters it used.


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


# --- from distill.methods.mobilebert_module
# Training module of MobileBERT's progressive transfer: one layer of the student after another.

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


# --- from distill.methods.theseus_module
# Training modules of BERT-of-Theseus: which modules of the predecessor are replaced in a step.

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


# --- from distill.methods.small_vocab_module
# Training module of a smaller vocabulary: the student, a copy of the teacher, and projections.


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
