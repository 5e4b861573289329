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
    """A phase of training with its own loss."""

    name: str
    terms: tuple[Term, ...]
    epochs: int | None = None
    """Default of the config's `earlier_epochs`. None marks the last phase, which takes the config's
    `epochs`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainingConfig with another value in this phase."""
    masked: bool = False
    """Whether the models read texts with masked words, and their heads predict words."""
    training_module: str = "student"
    """A name in TRAINING_MODULES."""
    uses_teacher_layers: bool = False
    """Whether the teacher's layers run in the student's steps."""

    def __post_init__(self) -> None:
        """Refuse settings in a last phase, which takes the settings of the run.

        Raises:
            ValueError: a last phase has settings.
        """
        if self.epochs is None and self.settings:
            raise ValueError(f"phase {self.name!r}: a last phase has no settings of its own.")

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals of the teacher that terms with a weight above 0 need."""
        return frozenset().union(*(term.needs for term in self.terms if term.weight))

    def reads(self, student: int, teacher: int) -> Wanted:
        """Return the teacher signals that the phase reads, and their layers, at these depths."""
        return wanted_by(self.terms, student, teacher)[1]

    def at(self, layers: int) -> tuple[Phase, ...]:
        """Return the phases for a student of a depth."""
        return (replace(self, terms=tuple(term.at(layers) for term in self.terms)),)


@dataclass(frozen=True)
class LayerPhases(Phase):
    """One phase of `epochs` for each layer of the student, lowest first."""

    keeps_lower: bool = True
    """Whether a phase also matches the layers below its own."""

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
    """One phase in which each layer of the student has a turn of `epochs`."""

    def at(self, layers: int) -> tuple[Phase, ...]:
        assert self.epochs is not None  # only a last phase has None
        own = {each.name: getattr(self, each.name) for each in fields(Phase)}
        return Phase(**{**own, "epochs": self.epochs * layers}).at(layers)


def one_phase(*terms: Term) -> tuple[Phase, ...]:
    """Return the phases of a method with one loss throughout."""
    return (Phase("task", terms),)


@dataclass(frozen=True)
class General:
    """A method's phases on a corpus, before any task; other fields are as on a task."""

    summary: str
    phases: tuple[Phase, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of GeneralConfig with another default: the paper's."""
    student: StudentKind | None = None
    """Kind of student; None for the same as on a task."""
    start_layers: str | None = None
    """Layers of the start that a student takes; None for the same as on a task."""


@dataclass(frozen=True)
class Method:
    """A row of METHODS."""

    name: str
    summary: str
    paper: str
    student: StudentKind
    phases: tuple[Phase, ...]
    """Phases for a student of any depth; `at` makes them for one depth."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of DistillConfig with another default: the paper's."""
    start_layers: str = "spread"
    """Layers of the start that a student takes, if any, a name in START_LAYERS: the layers that the
    method matches, or others for reasons in the method's file."""
    augmentation: str | None = None
    """Augmentation of the paper, a name in AUGMENTATIONS; off by default, as it is expensive."""
    general: General | None = None
    """Phases on a corpus; None for a method that only works on tasks."""

    @property
    def on_corpus(self) -> Method:
        """The method for a corpus."""
        assert self.general is not None  # all GENERAL_METHODS have it
        return replace(
            self,
            summary=self.general.summary,
            student=self.general.student or self.student,
            start_layers=self.general.start_layers or self.start_layers,
            phases=self.general.phases,
            settings=self.general.settings,
            augmentation=None,
        )

    def at(self, layers: int) -> Method:
        """Return the method with its phases for a student of a depth."""
        phases = tuple(each for phase in self.phases for each in phase.at(layers))
        return replace(self, phases=phases)

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student; by default it takes the method's `start_layers`.

        Raises:
            ModelError: this start allows no such student.
        """
        return self.student.build(start, replace(shape, start_layers=self.start_layers))

    @property
    def uses_teacher_layers(self) -> bool:
        """Whether the teacher's layers run in the student's steps."""
        return any(phase.uses_teacher_layers for phase in self.phases)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of all phases, one per name."""
        known = {term.name: term for phase in self.phases for term in phase.terms}
        return tuple(known.values())

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals of the teacher that terms with a weight above 0 need."""
        return frozenset().union(*(phase.needs for phase in self.phases))

    @property
    def learns_from_teacher(self) -> bool:
        """Whether the method uses the teacher's outputs or layers."""
        return bool(self.needs) or self.uses_teacher_layers

    @property
    def predicts_words(self) -> bool:
        """Whether teacher and student are masked language models, not bare encoders."""
        return any(phase.masked for phase in self.phases)

    @property
    def reads_predicted_words(self) -> bool:
        """Whether a loss reads the words that the teacher's trained head predicts."""
        return self.predicts_words and "logits" in self.needs

    @property
    def wants_teacher_tokens(self) -> bool:
        """Whether a term compares single tokens, so that both models need the same tokenizer."""
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
        """Weights with which the method reads only logits; None if there are none."""
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
            weights: loss weights by term.
            settings: temperature, layers or relation_heads; None keeps the method's own.

        Raises:
            ConfigError: a weight names no term, all weights would be 0, or no term has the setting.
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
                # a layer map is a function; the user set its name
                known = next((known for known, row in LAYER_MAPS.items() if row is value), None)
                given = f"layer_map={known}" if known else f"{name}={value}"
                raise ConfigError(
                    f"{given}: method {self.name!r} has no term with {name} to change (its terms: "
                    f"{', '.join(t.name for t in active)}). Leave it out, or choose another method."
                )
        phases = tuple(
            replace(phase, terms=tuple(_changed_term(t, weights, explicit) for t in phase.terms))
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


def _changed_term(term: Any, weights: Mapping[str, float], settings: Mapping[str, Any]) -> Term:
    changes = {name: value for name, value in settings.items() if hasattr(term, name)}
    if term.name in weights:
        changes["weight"] = weights[term.name]
        if isinstance(term, Match):  # an explicit weight is not divided
            changes["divided_by_depth"] = False
    changed: Term = replace(term, **changes)
    return changed
