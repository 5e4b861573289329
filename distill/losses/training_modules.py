"""TRAINING_MODULES: modules that hold a student and everything else that only training needs.

The loss is computed inside the module, so that a distributed run sees which parameters it used. A
module has the model as `student`. Its forward(batch, teacher signals, step) returns the weighted
parts of the loss, and `finished()` returns the bare student. A module with `rates` gives its parts
their own learning rates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.models.classifier import model_inputs
from bertender.models.families import encoder_layers, family_of
from bertender.training.examples import TensorBatch
from bertender.training.optimizers import Rates
from distill.losses.signals import Signals, read_signals
from distill.losses.terms import MIXED_INPUTS, Match, ProjectedWeights, Term, wanted_by

Terms = Sequence[Term]
Parts = dict[str, torch.Tensor]
"""Weighted parts of a loss, by term."""


class TrainingModule(nn.Module):
    """A student with projections of its states to the teacher's width.

    States of equal width are not projected.

    Args:
        student: the model to train.
        teacher: the model to learn from.
        terms: terms of the loss; terms of weight 0 are left out.
        seed: seed of new projections.
        steps: number of steps in the phase.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        terms: Terms,
        seed: int,
        steps: int,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.student = student
        self.terms = tuple(term for term in terms if term.weight)
        matches = [term for term in self.terms if isinstance(term, Match)]
        projected = {term.signal for term in matches if term.projected}
        widths = student.config.hidden_size, teacher.config.hidden_size
        wanted = sorted(projected) if widths[0] != widths[1] else []
        self.projections = nn.ModuleDict({signal: nn.Linear(*widths) for signal in wanted})

    @torch.no_grad()
    def load_learned(self, learned: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Load projections from earlier training, where their shapes agree.

        Returns:
            The module's projections, which change during training.
        """
        weights = dict(self.projections.named_parameters())
        for name, weight in weights.items():
            if name in learned and learned[name].shape == weight.shape:
                weight.copy_(learned[name])
        return weights

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> Parts:
        """Return the weighted parts of the loss."""
        depth = self.student.config.num_hidden_layers
        wanted, _ = wanted_by(self.terms, depth, teacher.depth)
        signals = read_signals(self.student, batch, wanted)
        return {
            term.name: term.weight * term(self._projected(term, signals), teacher, batch)
            for term in self.terms
        }

    def finished(self) -> PreTrainedModel:
        """Return the student, without projections."""
        return self.student

    def _projected(self, term: Term, signals: Signals) -> Signals:
        if not (isinstance(term, Match) and term.projected and term.signal in self.projections):
            return signals
        projection = self.projections[term.signal]
        states = {layer: projection(states) for layer, states in signals.hidden_states.items()}
        return replace(signals, hidden_states=states)


class LayerAfterLayer(TrainingModule):
    """MobileBERT's progressive knowledge transfer: each step matches one pair of layers."""

    RATE_AFTERWARDS = 0.1
    """Learning rate factor of layers after their turn."""

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        terms: Terms,
        seed: int,
        steps: int,
    ) -> None:
        super().__init__(student, teacher, terms, seed, steps)
        self.steps = steps
        matches = [term for term in self.terms if isinstance(term, Match)]
        pairs = matches[0].pairs(student.config.num_hidden_layers, teacher.config.num_hidden_layers)
        self.turns = [[replace(term, only=turn) for term in matches] for turn in range(len(pairs))]
        self.learning = [layer for layer, _ in pairs]  # student layer of each turn, from 1

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> Parts:
        """Return the weighted parts of the loss for the current pair of layers."""
        self.terms = tuple(self.turns[self.turn(step / self.steps)])
        return super().forward(batch, teacher, step)

    def turn(self, passed: float) -> int:
        """Return the index of the current pair after a share of the steps."""
        return min(int(passed * len(self.turns)), len(self.turns) - 1)

    @property
    def rates(self) -> Rates:
        """Learning rates of the student's layers; the embeddings follow the first layer."""
        base = f"student.{self.student.base_model_prefix}"
        layers = f"{base}.{family_of(self.student).layers}"
        depth = self.student.config.num_hidden_layers
        parts = {f"{layers}.{layer - 1}.": layer for layer in range(1, depth + 1)}
        return {
            part: partial(self.rate, layer)
            for part, layer in {f"{base}.embeddings.": 1, **parts}.items()
        }

    def rate(self, layer: int, passed: float) -> float:
        """Return the factor of a layer's learning rate; layers above have no gradient yet."""
        turn = self.turn(passed)
        had_its_turn = turn > 0 and layer <= self.learning[turn - 1]
        return self.RATE_AFTERWARDS if had_its_turn else 1.0


class _TheseusModule(nn.Module):
    """A successor layer and the predecessor layers it replaces; in eval mode the successor runs."""

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
    """BERT-of-Theseus: each step draws modules of the student or of its predecessor.

    Args:
        student, teacher, seed, steps: see TrainingModule.
        terms: one term, on the student's logits.
        first: probability of a successor module at the first step.
        last: probability after two thirds of the steps, after linear growth (eq. 5).
    """

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        terms: Terms,
        seed: int,
        steps: int,
        first: float = 0.3,
        last: float = 1.0,
    ) -> None:
        super().__init__()
        self.student = student
        self.seed, self.steps = seed, steps
        self.first, self.last = first, last
        (self.term,) = terms
        successors, predecessors = encoder_layers(student), encoder_layers(teacher)
        bounds = [i * len(predecessors) // len(successors) for i in range(len(successors) + 1)]
        student.requires_grad_(False)
        self.drawn = [
            _TheseusModule(layer.requires_grad_(True), predecessors[start:end])
            for layer, (start, end) in zip(successors, pairwise(bounds), strict=True)
        ]
        self._place(self.drawn)

    def probability(self, passed: float) -> float:
        """Return the probability of a successor module after a share of the phase, 0 to 1."""
        return min(self.last, self.first + (self.last - self.first) * 1.5 * passed)

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> Parts:
        """Return the task's loss with the modules that this step draws."""
        generator = torch.Generator().manual_seed(hash((self.seed, step)))
        draws = torch.rand(len(self.drawn), generator=generator)
        probability = self.probability(step / self.steps)
        for module, draw in zip(self.drawn, draws.tolist(), strict=True):
            module.replaced = draw < probability
        logits = self.student(**model_inputs(self.student, batch)).logits
        loss = self.term.weight * self.term(Signals(logits), teacher, batch)
        # every weight gets a gradient, 0 if its module was not drawn
        learning = (weight for module in self.drawn for weight in module.successor.parameters())
        return {self.term.name: loss + torch.stack([w.sum() * 0 for w in learning]).sum()}

    def finished(self) -> PreTrainedModel:
        """Return the student with only its own layers."""
        self._place([module.successor for module in self.drawn])
        self.student.requires_grad_(True)
        return self.student

    def _place(self, layers: list[Any]) -> None:
        """Replace the student's layers."""
        place = self.student.base_model.get_submodule(family_of(self.student).layers)
        assert isinstance(place, nn.ModuleList)
        for index, layer in enumerate(layers):
            place[index] = layer


class SharedProjection(nn.Module):
    """Projects weights to other sizes by a matrix for each side.

    A weight W (out, in) becomes L W R^T, a bias b becomes L b. Weights of equal sizes share the
    matrices; a dimension that keeps its size has none.

    Args:
        weights: weights to project.
        targets: weights of the wanted sizes.
    """

    def __init__(self, weights: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        super().__init__()
        sizes = {
            (side, size, target)
            for weight, aim in zip(weights, targets, strict=True)
            for side, (size, target) in enumerate(zip(weight.shape, aim.shape, strict=True))
            if size != target
        }
        matrices = {self.name_of(*each): torch.empty(each[2], each[1]) for each in sorted(sizes)}
        self.matrices = nn.ParameterDict(
            {name: nn.init.orthogonal_(matrix) for name, matrix in matrices.items()}
        )

    @staticmethod
    def name_of(side: int, size: int, target: int) -> str:
        """Return the name of a matrix."""
        return f"{'in' if side else 'out'}-{size}-{target}"

    def forward(self, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the weight at the size of the target."""
        for side, (size, aim) in enumerate(zip(weight.shape, target.shape, strict=True)):
            if size != aim:
                matrix = self.matrices[self.name_of(side, size, aim)]
                weight = weight @ matrix.T if side else matrix @ weight
        return weight


class DualTraining(nn.Module):
    """Training with a smaller vocabulary: student, a teacher copy that reads both vocabularies, and
    projections. Arguments are those of TrainingModule.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        terms: Terms,
        seed: int,
        steps: int,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.terms = tuple(term for term in terms if term.weight)
        self.projected = [term for term in self.terms if isinstance(term, ProjectedWeights)]
        self.student = student
        self.teacher = copy.deepcopy(teacher).requires_grad_(True)
        # `vocab_size` counts the table's rows, not the tokenizer's tokens
        entries = teacher.config.vocab_size + student.config.vocab_size
        self.teacher.resize_token_embeddings(entries, mean_resizing=False)
        self.projections = nn.ModuleDict(
            {term.name: SharedProjection(*self._weights(term)) for term in self.projected}
        )

    def forward(self, batch: TensorBatch, teacher: Signals, step: int) -> Parts:
        """Return the weighted parts of the loss; it does not read the teacher's own outputs."""
        # products of weights in full precision, even if the models run in bf16
        with torch.autocast(batch["input_ids"].device.type, enabled=False):
            compared = {term.name: self._compared(term) for term in self.projected}
        mine, others = ({name: sides[side] for name, sides in compared.items()} for side in (0, 1))
        mixed = {name: batch[column] for name, column in MIXED_INPUTS.items()}
        ours = Signals(self.student(**model_inputs(self.student, batch)).logits, weights=mine)
        theirs = Signals(self.teacher(**mixed).logits, weights=others)
        return {term.name: term.weight * term(ours, theirs, batch) for term in self.terms}

    def finished(self) -> PreTrainedModel:
        """Return the student, without teacher copy and projections."""
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
        """Return the weights to project, and the weights of the wanted sizes."""
        depths = (self.student.config.num_hidden_layers, self.teacher.config.num_hidden_layers)
        mine, others = zip(*term.layers(*depths), strict=True)
        own = _matched_weights(self.student, mine)
        theirs = [weight.detach() for weight in _matched_weights(self.teacher, others)]
        theirs[0] = theirs[0][-len(own[0]) :]  # the student's tokens come after the teacher's
        return (own, theirs) if term.projects_student else (theirs, own)


def _matched_weights(model: PreTrainedModel, layers: Sequence[int]) -> list[torch.Tensor]:
    """Return the word embeddings, and all weights of some layers, counted from 1."""
    family, every = family_of(model), encoder_layers(model)
    parts = [family.layer_weights(every[number - 1]) for number in layers]
    words = model.base_model.get_parameter(f"{family.word_embeddings}.weight")
    return [words, *(weight for part in parts for weight in part.values())]


TRAINING_MODULES: Mapping[str, Any] = {
    "student": TrainingModule,
    "layer after layer": LayerAfterLayer,
    "replacing": Replacing,
    "half replacing": partial(Replacing, first=0.5, last=0.5),
    "replaced": partial(Replacing, first=1.0),
    "dual": DualTraining,
}
"""Training modules, by the name in `Phase.training_module`."""
