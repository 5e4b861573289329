"""What a distillation method is: a student, the terms of its loss, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from bertender.core.errors import ConfigError, nearest_hint
from distill.terms import SoftLabels, TeacherSignal, Term

__all__ = ["Method"]

StudentBuilder = Callable[[PreTrainedModel, int, tuple[int, ...] | None], PreTrainedModel]


@dataclass(frozen=True)
class Method:
    """A row of METHODS."""

    name: str
    summary: str
    paper: str
    student: StudentBuilder
    """(teacher, layers, chosen teacher layers or None) -> student"""
    terms: tuple[Term, ...]

    @property
    def needs(self) -> frozenset[TeacherSignal]:
        """What the terms with a weight above 0 need of the teacher."""
        return frozenset().union(*(term.needs for term in self.terms if term.weight))

    def with_weights(self, weights: Mapping[str, float], temperature: float | None) -> Method:
        """Return the method with other weights or another temperature.

        Raises:
            ConfigError: a weight names no term, no weight is left above 0, or no term has a
                temperature to change.
        """
        self._refuse_unknown(weights)
        if temperature is not None and not any(isinstance(t, SoftLabels) for t in self.terms):
            raise ConfigError(
                f"temperature={temperature}: method {self.name!r} has no soft labels to soften. "
                "Leave it out, or choose a method with a term 'soft'."
            )
        terms = tuple(_changed(term, weights, temperature) for term in self.terms)
        if not any(term.weight for term in terms):
            raise ConfigError(f"weights: every term of {self.name!r} has weight 0; raise one.")
        return replace(self, terms=terms)

    def _refuse_unknown(self, weights: Mapping[str, float]) -> None:
        names = [term.name for term in self.terms]
        for name in weights:
            if name not in names:
                raise ConfigError(
                    f"weights: method {self.name!r} has no loss term {name!r}."
                    f"{nearest_hint(name, names)} Its terms: {', '.join(names)}."
                )


def _changed(term: Any, weights: Mapping[str, float], temperature: float | None) -> Term:
    changes: dict[str, float] = {}
    if term.name in weights:
        changes["weight"] = weights[term.name]
    if temperature is not None and isinstance(term, SoftLabels):
        changes["temperature"] = temperature
    changed: Term = replace(term, **changes)
    return changed
