"""What a distillation method is: a student, the phases of its training, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from transformers import PreTrainedModel

from bertender.core.errors import ConfigError, nearest_hint
from distill.losses.layer_maps import LAYER_MAPS
from distill.losses.signals import TEXT_SIGNALS, Signal, Wanted
from distill.losses.terms import Term, wanted_by
from distill.losses.training_module import TrainingModule
from distill.students import StartLayers, StudentBuilder, StudentShape, spread_layers

__all__ = [
    "Method",
    "Phase",
    "Phases",
    "TrainingModuleBuilder",
    "all_layers",
    "half_the_layers",
    "one_phase",
]


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

    @property
    def needs(self) -> frozenset[Signal]:
        """What the terms with a weight above 0 need of the teacher."""
        return frozenset().union(*(term.needs for term in self.terms if term.weight))

    def reads(self, student: int, teacher: int) -> Wanted:
        """Return what is read of the teacher, and of which layers, at these depths."""
        return wanted_by(self.terms, student, teacher)[1]


class TrainingModuleBuilder(Protocol):
    """Makes the module that a phase of `steps` steps trains.

    It holds the model as `student`; its forward(batch, teacher signals, step) returns the weighted
    parts of the loss, and its `finished()` the student, free of what its training needed. Where it
    has `rates`, parts of it learn at a rate of their own.
    """

    def __call__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        phase: Phase,
        *,
        seed: int,
        steps: int,
    ) -> Any: ...


Phases = Callable[[int], tuple[Phase, ...]]
"""student layers -> phases"""


def one_phase(*terms: Term) -> Phases:
    """Return the phases of a method that has one loss from beginning to end."""
    return lambda layers: (Phase("task", terms),)


def half_the_layers(layers: int) -> int:
    """Return the usual depth of a student: 3 of 6, 6 of 12."""
    return max(layers // 2, 1)


def all_layers(layers: int) -> int:
    """Return the depth of a student that is as deep as what it starts from."""
    return layers


@dataclass(frozen=True)
class Method:
    """A row of METHODS."""

    name: str
    paper: str
    builder: StudentBuilder
    phases: Phases
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of DistillConfig that have another default here: the paper's."""
    training_module: TrainingModuleBuilder = TrainingModule.of
    layers: Callable[[int], int] = half_the_layers
    """Layers of the teacher -> the student's, where it starts from that and the config has none."""
    layers_of_own_start: Callable[[int], int] = all_layers
    """Layers of another start -> the student's, where the config has none."""
    start_layers: StartLayers = spread_layers
    """Which layers of its start a student takes, if it takes some: those that the method matches,
    or the method's file says why others."""
    layer_by_layer: bool = True
    """`teacher_layers` names one for each of the student's layers."""
    wants_own_start: bool = False
    """The student must start from an encoder of its own, not from the teacher."""
    uses_teacher_layers: bool = False
    """The training module runs the teacher's own layers, in the student."""
    starts_from_layers: bool = True
    """The student is shaped after the layers of what it starts from, which must be alike then."""
    own_vocabulary: bool = False
    """The student has a vocabulary of its own, trained on the corpus."""
    augmentation: str | None = None
    """The paper's own, a row of AUGMENTATIONS: a suggestion, since it multiplies the training."""

    def student(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student; where the shape names no layers of its start, the row's are taken.

        Raises:
            ModelError: no such student can be made of this start.
        """
        return self.builder(start, replace(shape, start_layers=self.start_layers))

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of all phases by name, for a student of two layers."""
        known = {term.name: term for phase in self.phases(2) for term in phase.terms}
        return tuple(known.values())

    @property
    def needs(self) -> frozenset[Signal]:
        """What the terms with a weight above 0 need of the teacher."""
        return frozenset().union(*(phase.needs for phase in self.phases(2)))

    @property
    def predicts_words(self) -> bool:
        """Return whether teacher and student are masked language models, not bare encoders."""
        return any(phase.masked for phase in self.phases(2))

    @property
    def wants_teacher_tokens(self) -> bool:
        """Return whether single tokens are compared, so that both must read the same ones."""
        return self.uses_teacher_layers or bool(self.needs - TEXT_SIGNALS)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must hold of teacher and student, in words, beside what the teacher must give."""
        shared = {term.shared for term in self.terms if term.weight}
        held = {
            "the teacher's own layers": self.uses_teacher_layers,
            "a pre-trained student of its own": self.wants_own_start,
            "a teacher that predicts words": self.predicts_words,
            "the teacher's tokens": self.wants_teacher_tokens,
            "the teacher's width": "hidden_size" in shared,
            "the teacher's number of heads": "num_attention_heads" in shared,
        }
        return tuple(name for name, holds in held.items() if holds)

    @property
    def cost(self) -> str:
        """What the teacher costs in training, in words."""
        if self.uses_teacher_layers:
            return "the teacher's layers run in the student's steps"
        if not self.needs:
            return "no teacher"
        online = [phase.name for phase in self.phases(2) if phase.needs - TEXT_SIGNALS]
        if not online:
            return "the teacher reads each text once, for all epochs"
        return f"the teacher runs in each step of {' and '.join(online)}"

    @property
    def weights_for_logits_alone(self) -> Mapping[str, float] | None:
        """The weights that leave what reads no more than logits; None where they cannot."""
        reading_more = {t.name: 0.0 for t in self.terms if t.needs - {"logits"}}
        emptied = any(
            all(term.name in reading_more for term in phase.terms) for phase in self.phases(2)
        )
        return None if self.uses_teacher_layers or emptied else reading_more

    @property
    def has_phases(self) -> bool:
        """Return whether there is a phase before the last."""
        return len(self.phases(2)) > 1

    def changed(self, weights: Mapping[str, float], **settings: Any) -> Method:
        """Return the method with other weights, and other settings of its terms.

        Args:
            weights: by the name of the term.
            settings: temperature, layers or relation_heads; None leaves the method's own.

        Raises:
            ConfigError: a weight names no term, no weight is left above 0, or no term has what is
                to be changed.
        """
        explicit = {name: value for name, value in settings.items() if value is not None}
        self._check_known(weights)
        self._check_used(explicit, weights)

        def phases(layers: int) -> tuple[Phase, ...]:
            return tuple(
                replace(phase, terms=tuple(_changed(t, weights, explicit) for t in phase.terms))
                for phase in self.phases(layers)
            )

        self._check_learns(phases(2))
        return replace(self, phases=phases)

    def _check_known(self, weights: Mapping[str, float]) -> None:
        names = [term.name for term in self.terms]
        for name in weights:
            if name not in names:
                raise ConfigError(
                    f"weights: method {self.name!r} has no loss term {name!r}."
                    f"{nearest_hint(name, names)} Its terms: {', '.join(names)}."
                )

    def _check_used(self, explicit: Mapping[str, Any], weights: Mapping[str, float]) -> None:
        active = [term for term in self.terms if weights.get(term.name, term.weight)]
        names = ", ".join(term.name for term in active)
        for name, value in explicit.items():
            if not any(hasattr(term, name) for term in active):
                raise ConfigError(
                    f"{_as_set(name, value)}: method {self.name!r} has no term with {name} to "
                    f"change (its terms: {names}). Leave it out, or choose another method."
                )

    def _check_learns(self, phases: tuple[Phase, ...]) -> None:
        for phase in phases:
            if not any(term.weight and term.teaches for term in phase.terms):
                where = f" in phase {phase.name!r}" if self.has_phases else ""
                raise ConfigError(
                    f"weights: every term of {self.name!r} that the student learns from has "
                    f"weight 0{where}; raise one."
                )


def _as_set(name: str, value: Any) -> str:
    """Return a setting of terms as the user gave it: of layer maps, its name."""
    known = next((known for known, row in LAYER_MAPS.items() if row is value), None)
    return f"layer_map={known}" if known else f"{name}={value}"


def _changed(term: Any, weights: Mapping[str, float], settings: Mapping[str, Any]) -> Term:
    changes = {name: value for name, value in settings.items() if hasattr(term, name)}
    changed: Term = replace(term, weight=weights.get(term.name, term.weight), **changes)
    return changed
