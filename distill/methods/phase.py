"""A phase of a method's training as data: its loss, its settings, and whether layers have turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bertender.core.table import load_place
from distill.losses.signals import Signal, Wanted
from distill.losses.terms import Match, Term, wanted_by

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "PROJECTING",
    "ForEachLayer",
    "Phase",
    "TrainingModuleKind",
    "each_layer_alone",
    "each_layer_in_turn",
    "for_all_layers",
    "one_phase",
    "up_to_each_layer",
]


@dataclass(frozen=True)
class TrainingModuleKind:
    """A class of training modules, such as `TrainingModule`.

    Its objects hold the model as `student`; their forward(batch, teacher signals, step) returns the
    weighted parts of the loss, and `finished()` the student, free of what its training needed.
    Where they have `rates`, parts of them learn at a rate of their own.
    """

    place: str
    """`module:NAME` of the class. As a class of PyTorch it is imported when one is built: methods
    and their settings are read without it."""
    uses_teacher_layers: bool = False
    """The teacher's own layers run in the student's steps."""

    def of(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        phase: Phase,
        *,
        seed: int,
        steps: int,
    ) -> Any:
        """Build the training module of a phase of `steps` steps."""
        return load_place(self.place).of(student, teacher, phase, seed=seed, steps=steps)


PROJECTING = TrainingModuleKind("distill.losses.training_module:TrainingModule")
"""The student, with projections where states are brought to the teacher's width."""


ForEachLayer = Callable[["Phase", int], tuple["Phase", ...]]
"""(phase, student layers) -> the phases that it stands for"""


def for_all_layers(phase: Phase, layers: int) -> tuple[Phase, ...]:
    """Return the phase itself: it is the same at any depth."""
    return (phase,)


def up_to_each_layer(phase: Phase, layers: int) -> tuple[Phase, ...]:
    """Return a phase for each layer from the lowest, which matches those below it too."""
    return tuple(phase.of_layer(layer, up_to=layer) for layer in range(1, layers + 1))


def each_layer_alone(phase: Phase, layers: int) -> tuple[Phase, ...]:
    """Return a phase for each layer from the lowest, which matches that one."""
    return tuple(phase.of_layer(layer, only=layer - 1) for layer in range(1, layers + 1))


def each_layer_in_turn(phase: Phase, layers: int) -> tuple[Phase, ...]:
    """Return one phase in which each layer has a turn as long as the phase is."""
    assert phase.epochs is not None  # the last phase is as long as the config sets
    return (replace(phase, epochs=phase.epochs * layers, for_each_layer=for_all_layers),)


@dataclass(frozen=True)
class Phase:
    """A part of the training with a loss of its own."""

    name: str
    terms: tuple[Term, ...]
    epochs: int | None = None
    """The last phase has None and takes the config's `epochs`; those before it take the config's
    `earlier_epochs`, or these where it has none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainingConfig that have another value in this phase."""
    masked: bool = False
    """The models read texts with some words masked, and their heads predict words."""
    training_module: TrainingModuleKind = PROJECTING
    for_each_layer: ForEachLayer = for_all_layers
    """Its expansion at a depth: itself, or a phase or a turn of each layer, whose `epochs`
    these then are."""

    def __post_init__(self) -> None:
        """Refuse settings of a last phase, which takes those of the run.

        Raises:
            ValueError: a row is written so.
        """
        if self.epochs is None and self.settings:
            raise ValueError(f"phase {self.name!r}: a last phase has no settings of its own.")

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals of the teacher that the terms with a weight above 0 need."""
        return frozenset().union(*(term.needs for term in self.terms if term.weight))

    def reads(self, student: int, teacher: int) -> Wanted:
        """Return the signals that are read of the teacher, and their layers, at these depths."""
        return wanted_by(self.terms, student, teacher)[1]

    def at(self, layers: int) -> tuple[Phase, ...]:
        """Return the phases that it stands for in a student of a depth."""
        terms = (term.at(layers) if isinstance(term, Match) else term for term in self.terms)
        return self.for_each_layer(replace(self, terms=tuple(terms)), layers)

    def of_layer(self, layer: int, *, up_to: int | None = None, only: int | None = None) -> Phase:
        """Return the phase of one layer, whose terms match the pairs that are named."""
        terms = tuple(
            replace(term, up_to=up_to, only=only) if isinstance(term, Match) else term
            for term in self.terms
        )
        name = f"{self.name}-{layer}"
        return replace(self, name=name, terms=terms, for_each_layer=for_all_layers)


def one_phase(*terms: Term) -> tuple[Phase, ...]:
    """Return the phases of a method that has one loss from beginning to end."""
    return (Phase("task", terms),)
