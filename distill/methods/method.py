"""Distillation method: a student, the phases of its training, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from bertender.core.errors import ConfigError, nearest_hint
from distill.losses.signals import TEXT_SIGNALS, Signal, Wanted
from distill.losses.terms import LAYER_MAPS, Match, Term, wanted_by
from distill.students import StudentKind, StudentShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    training_module: str = "student"
    """A row of TRAINING_MODULES."""
    uses_teacher_layers: bool = False
    """The teacher's own layers run in the student's steps."""

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
        return (replace(self, terms=tuple(term.at(layers) for term in self.terms)),)


@dataclass(frozen=True)
class LayerPhases(Phase):
    """A phase for each layer of the student from the lowest, as long as `epochs`."""

    keeps_lower: bool = True
    """A phase matches the layers below its own too; else its own alone."""

    def at(self, layers: int) -> tuple[Phase, ...]:
        return tuple(self._of(layer, layers) for layer in range(1, layers + 1))

    def _of(self, layer: int, layers: int) -> Phase:
        pairs: dict[str, Any] = {"up_to": layer} if self.keeps_lower else {"only": layer - 1}
        terms = (replace(term, **pairs) if isinstance(term, Match) else term for term in self.terms)
        own = {each.name: getattr(self, each.name) for each in fields(Phase)}
        changes = {"name": f"{self.name}-{layer}", "terms": tuple(t.at(layers) for t in terms)}
        return Phase(**{**own, **changes})


@dataclass(frozen=True)
class LayerTurns(Phase):
    """One phase in which each layer of the student has a turn as long as `epochs`."""

    def at(self, layers: int) -> tuple[Phase, ...]:
        assert self.epochs is not None  # the last phase is as long as the config sets
        own = {each.name: getattr(self, each.name) for each in fields(Phase)}
        return Phase(**{**own, "epochs": self.epochs * layers}).at(layers)


def one_phase(*terms: Term) -> tuple[Phase, ...]:
    """Return the phases of a method that has one loss from beginning to end."""
    return (Phase("task", terms),)


@dataclass(frozen=True)
class General:
    """A method's phases on a corpus, before any task; all else is as on a task."""

    summary: str
    phases: tuple[Phase, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of GeneralConfig that have another default here: the paper's."""
    student: StudentKind | None = None
    """The kind of its student; None is that of the task."""


@dataclass(frozen=True)
class Method:
    """A row of METHODS."""

    name: str
    summary: str
    paper: str
    student: StudentKind
    phases: tuple[Phase, ...]
    """Phases for a student of any depth; `at` writes them out for one depth."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of DistillConfig that have another default here: the paper's."""
    start_layers: str = "spread"
    """Which layers of its start a student takes, if it takes some, a row of START_LAYERS: those
    that the method matches, or others for reasons in the method's file."""
    augmentation: str | None = None
    """The paper's own, a row of AUGMENTATIONS: a suggestion, since it multiplies the training."""
    general: General | None = None
    """Its phases on a corpus; None for a method of tasks alone."""

    @property
    def on_corpus(self) -> Method:
        """The method as it distils on a corpus."""
        assert self.general is not None  # a row of GENERAL_METHODS has it
        return replace(
            self,
            summary=self.general.summary,
            student=self.general.student or self.student,
            phases=self.general.phases,
            settings=self.general.settings,
            augmentation=None,
        )

    def at(self, layers: int) -> Method:
        """Return the method for a student of a depth: its phases are written out."""
        phases = tuple(each for phase in self.phases for each in phase.at(layers))
        return replace(self, phases=phases)

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student; where the shape names no layers of its start, the row's are taken.

        Raises:
            ModelError: no such student can be made of this start.
        """
        return self.student.build(start, replace(shape, start_layers=self.start_layers))

    @property
    def uses_teacher_layers(self) -> bool:
        """Whether the teacher's own layers run in the student's steps."""
        return any(phase.uses_teacher_layers for phase in self.phases)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of all phases, one of a name."""
        known = {term.name: term for phase in self.phases for term in phase.terms}
        return tuple(known.values())

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals of the teacher that the terms with a weight above 0 need."""
        return frozenset().union(*(phase.needs for phase in self.phases))

    @property
    def learns_from_teacher(self) -> bool:
        """Whether the teacher takes part at all: its outputs, or its layers."""
        return bool(self.needs) or self.uses_teacher_layers

    @property
    def predicts_words(self) -> bool:
        """Whether teacher and student are masked language models, not bare encoders."""
        return any(phase.masked for phase in self.phases)

    @property
    def reads_predicted_words(self) -> bool:
        """Whether a loss reads which words the teacher predicts, as its head has learned."""
        return self.predicts_words and "logits" in self.needs

    @property
    def wants_teacher_tokens(self) -> bool:
        """Whether single tokens are compared, so that both must read the same ones."""
        return self.uses_teacher_layers or bool(self.needs - TEXT_SIGNALS)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions on teacher and student, in words, besides the teacher's signals."""
        shared = {term.shared for term in self.terms if term.weight}
        held = {
            "the teacher's own layers": self.uses_teacher_layers,
            "a pre-trained student of its own": self.student.wants_own_start,
            "a teacher that predicts words": self.reads_predicted_words,
            "the teacher's tokens": self.wants_teacher_tokens,
            "the teacher's width": "hidden_size" in shared,
            "the teacher's number of heads": "num_attention_heads" in shared,
        }
        return tuple(name for name, holds in held.items() if holds)

    @property
    def cost(self) -> str:
        """Cost of the teacher in training, in words."""
        if self.uses_teacher_layers:
            return "the teacher's layers run in the student's steps"
        if not self.needs:
            return "no teacher"
        online = [phase.name for phase in self.phases if phase.needs - TEXT_SIGNALS]
        if not online:
            return "the teacher reads each text once, for all epochs"
        return f"the teacher runs in each step of {' and '.join(online)}"

    @property
    def weights_for_logits_alone(self) -> Mapping[str, float] | None:
        """The weights that leave what reads no more than logits; None where they cannot."""
        reading_more = {t.name: 0.0 for t in self.terms if t.needs - {"logits"}}
        emptied = any(
            all(term.name in reading_more for term in phase.terms) for phase in self.phases
        )
        return None if self.uses_teacher_layers or emptied else reading_more

    @property
    def has_phases(self) -> bool:
        """Whether there is a phase before the last."""
        return len(self.phases) > 1

    def changed(self, weights: Mapping[str, float], **settings: Any) -> Method:
        """Return the method with other weights, and other settings of its terms.

        Args:
            weights: by the name of the term.
            settings: temperature, layers or relation_heads; None leaves the method's own.

        Raises:
            ConfigError: a weight names no term, no weight is left above 0, or no term has what is
                to be changed.
        """
        names = [term.name for term in self.terms]
        for name in weights:
            if name not in names:
                raise ConfigError(
                    f"weights: method {self.name!r} has no loss term {name!r}."
                    f"{nearest_hint(name, names)} Its terms: {', '.join(names)}."
                )
        explicit = {name: value for name, value in settings.items() if value is not None}
        active = [term for term in self.terms if weights.get(term.name, term.weight)]
        for name, value in explicit.items():
            if not any(hasattr(term, name) for term in active):
                # a layer map is a function, which the user gave by its name
                known = next((known for known, row in LAYER_MAPS.items() if row is value), None)
                given = f"layer_map={known}" if known else f"{name}={value}"
                raise ConfigError(
                    f"{given}: method {self.name!r} has no term with {name} to change (its terms: "
                    f"{', '.join(t.name for t in active)}). Leave it out, or choose another method."
                )
        phases = tuple(
            replace(phase, terms=tuple(_changed(t, weights, explicit) for t in phase.terms))
            for phase in self.phases
        )
        for phase in phases:
            if not any(term.weight and term.teaches for term in phase.terms):
                where = f" in phase {phase.name!r}" if self.has_phases else ""
                raise ConfigError(
                    f"weights: every term of {self.name!r} that the student learns from has "
                    f"weight 0{where}; raise one."
                )
        return replace(self, phases=phases)


def _changed(term: Any, weights: Mapping[str, float], settings: Mapping[str, Any]) -> Term:
    changes = {name: value for name, value in settings.items() if hasattr(term, name)}
    if term.name in weights:
        changes["weight"] = weights[term.name]
        if isinstance(term, Match):  # the user's word is the weight itself
            changes["divided_by_depth"] = False
    changed: Term = replace(term, **changes)
    return changed
