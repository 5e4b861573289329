"""Frozen, typed settings that reject unknown keys, and tables of names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from bertender.core.errors import ConfigError, UnknownNameError, nearest_hint


class Record(BaseModel):
    """Frozen data that survives a round trip through JSON; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


R = TypeVar("R", bound=Record)


def read_record(kind: type[R], path: Path) -> R:
    """Return a saved record.

    Raises:
        ValueError: the file cannot be read, or does not hold such a record; says why.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    except (OSError, ConfigError) as error:  # ConfigError: no row of a table
        reason = str(error)
    raise ValueError(reason)


class Config(Record):
    """A stage's settings. A field, its command-line flag and its recipe key share one name."""

    model_config = ConfigDict(allow_inf_nan=False)

    shown_defaults: ClassVar[Mapping[str, str]] = {}
    """Help text for a default that depends on other fields."""

    panel: ClassVar[str] = "Settings"
    """Title of a class's options in the help of a command."""

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Title -> settings of a class under another title."""

    main: ClassVar[tuple[str, ...]] = ()
    """The most important settings, shown first in the help of a command."""

    without_flag: ClassVar[frozenset[str]] = frozenset()
    """Settings that a command does not take as a flag of the same name."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = {}
    """Conflicts of settings that a class adds to those of its bases, by name."""

    @field_validator("*")
    @classmethod
    def _at_home(cls, value: Any) -> Any:
        """Put the home folder in, as a shell does where it sees a path: not in a recipe."""
        # without a user of the name, `~name` stays
        return Path(os.path.expanduser(value)) if isinstance(value, Path) else value  # noqa: PTH111

    @classmethod
    def all_rules(cls) -> Mapping[str, Rule[Any]]:
        """Return the rules of the class and its bases, which `parse` checks, by name."""
        classes = [each for each in cls.__mro__ if issubclass(each, Config)]
        return {name: rule for each in reversed(classes) for name, rule in each.rules.items()}

    @classmethod
    def titles(cls) -> dict[str, str | None]:
        """Return the title above each setting's option, in the order of a command's help.

        The title is that of the class that declares the setting first, or None for `main` settings.
        """
        classes = [each for each in cls.__mro__ if issubclass(each, Config)]
        declaring = {name: each for each in classes for name in get_annotations(each)}
        order = sorted(cls.model_fields, key=lambda name: classes.index(declaring[name]))
        moved = {
            name: title
            for each in reversed(classes)
            for title, names in each.panels.items()
            for name in names
        }
        titles = {name: moved.get(name, declaring[name].panel) for name in order}
        return {**dict.fromkeys(cls.main), **{n: t for n, t in titles.items() if n not in cls.main}}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Build the config from plain values.

        Raises:
            ConfigError: a key is unknown (the message names the nearest known one) or a value is
                not allowed, with all problems listed; or the settings violate one of `all_rules`.
        """
        try:
            config = cls.model_validate(dict(values))
        except ValidationError as error:
            problems = "; ".join(cls._explain(problem) for problem in problems_of(error))
            raise ConfigError(problems) from None
        config.check_rules()
        return config

    def check_rules(self) -> None:
        """Raise ConfigError for the first of `all_rules` that the settings violate."""
        for rule in self.all_rules().values():
            rule.check(self)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return the config with other values of some settings."""
        explicit = {name: getattr(self, name) for name in self.model_fields_set}
        return self.model_validate({**explicit, **changes})

    def identity(self, exclude: Iterable[str] = ()) -> dict[str, Any]:
        """Return the settings as plain values, with the names of files and folders alone.

        A path may be written from another folder; the digests of contents are compared besides.
        """
        plain = self.model_dump(mode="json", exclude={*exclude})
        return {name: _without_folders(value) for name, value in plain.items()}

    def is_explicit(self, name: str, *, beyond_default: bool = False) -> bool:
        """Return whether a setting was set; to None, or with `beyond_default` to any value, only if
        that is not its default."""
        value, default = getattr(self, name), type(self).model_fields[name].default
        tells = value != default or not (beyond_default or value is None)
        return name in self.model_fields_set and tells

    def as_set(self, names: Iterable[str]) -> str:
        """Return settings as `name=value`, separated by commas."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    @classmethod
    def _explain(cls, problem: Any) -> str:
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = sorted(cls.model_fields)
            return f"{name}: unknown key.{nearest_hint(name, known)} Known: {', '.join(known)}"
        if problem["type"] == "missing":
            return f"{name}: a value is required"
        reason = problem["msg"].removeprefix("Value error, ")
        return f"{name}={problem['input']!r}: {reason}" if name else reason


def _without_folders(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_without_folders, value)]
    if not isinstance(value, str):
        return value

    def named(part: str) -> str:
        exists = os.path.exists(part)  # noqa: PTH110 - Path raises for a string that is no path
        return Path(part).resolve().name if exists else part

    return ",".join(named(part.strip()) for part in value.split(","))  # a corpus may have several


C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Rule(Generic[C]):
    """A conflict of settings."""

    violated: Callable[[C], bool]
    message: str | Callable[[C], str]
    """The error, what is allowed and the next step; `{heads}` is replaced by the setting's
    value."""
    settings: frozenset[str] = frozenset()
    """The rule applies if one of them is explicit; without any, it always applies."""
    against: str | None = None
    """The conflicting setting, for the message."""
    beyond_default: bool = False
    """Whether an explicit setting with its default value violates no rule."""

    def check(self, config: C) -> None:
        """Raise ConfigError if the settings violate the rule."""
        explicit = [
            name
            for name in sorted(self.settings)
            if config.is_explicit(name, beyond_default=self.beyond_default)
        ]
        if (self.settings and not explicit) or not self.violated(config):
            return
        against = f"{config.as_set([self.against])} and " if self.against else ""
        settings = f"{against}{config.as_set(explicit)}: " if explicit else ""
        if callable(self.message):
            raise ConfigError(settings + self.message(config))
        raise ConfigError(settings + self.message.format_map(dict(config)))


def problems_of(error: ValidationError) -> list[Any]:
    """Return the problems of an error, but for tuples that are too short since items are bad."""
    problems = error.errors()
    places = [each["loc"] for each in problems]

    def follows(problem: Any) -> bool:
        own = problem["loc"]
        inside = any(len(each) > len(own) and each[: len(own)] == own for each in places)
        return problem["type"] == "too_short" and inside

    return [each for each in problems if not follows(each)]


def check_least(least: int, **settings: float | None) -> None:
    """Raise ConfigError for a setting of a Python function that is below the least allowed value.

    Settings of a `Config` have bounds of their own; None is a default.
    """
    for name, value in settings.items():
        if value is not None and value < least:
            raise ConfigError(
                f"{name}={value}: allowed is {least} or more. Leave it out for the default."
            )


def parts_of(value: Any) -> Any:
    """Split a comma-separated list ("1,3,5"; "" is empty); return anything else unchanged."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",")) if value.strip() else ()


Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows by name, in the order of definition; `table[name]` raises UnknownNameError.

    Args:
        noun: what a row is, for error messages, such as "calibrator".
        rows: name -> row.
    """

    def __init__(self, noun: str, rows: Mapping[str, Row]) -> None:
        super().__init__(rows)
        self.noun = noun

    def __missing__(self, name: str) -> Row:
        raise UnknownNameError(self.noun, name, self)

    def validator(self, *also: str) -> AfterValidator:
        """Return a validator of a field that allows the names of rows, those in `also`, and
        None."""

        def known(name: str | None, info: ValidationInfo) -> str | None:
            if name is not None and name not in self and name not in also:
                raise UnknownNameError(self.noun, name, (*also, *self), setting=info.field_name)
            return name

        return AfterValidator(known)
