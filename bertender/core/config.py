"""The base of every configuration: frozen, typed, and strict about its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bertender.core.errors import ConfigError, nearest_hint

__all__ = ["Config", "Record", "parts_of"]


class Record(BaseModel):
    """Frozen data that goes to JSON and comes back equal; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Config(Record):
    """A stage's settings. A field, its command-line flag and its recipe key share one name."""

    model_config = ConfigDict(allow_inf_nan=False)

    shown_defaults: ClassVar[Mapping[str, str]] = {}
    """What help says in the place of a default that depends on other fields."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Build the config from plain values.

        Raises:
            ConfigError: a key is unknown (the nearest known one is named) or a value is refused;
                all problems are listed at once.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            problems = "; ".join(cls._explain(problem) for problem in error.errors())
            raise ConfigError(f"{cls.__name__}: {problems}") from None

    @classmethod
    def _explain(cls, problem: Any) -> str:
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = sorted(cls.model_fields)
            return f"unknown key {name!r}.{nearest_hint(name, known)} Known: {', '.join(known)}"
        if problem["type"] == "missing":
            return f"key {name!r} is required"
        return f"{name}={problem['input']!r}: {problem['msg']}"


def parts_of(value: Any) -> Any:
    """Return what a list by commas ("1,3,5") holds; anything else stays what it is."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value
