"""Settings that are frozen, typed and strict about their keys, and tables of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from bertender.core.errors import ConfigError, UnknownNameError, nearest_hint


class Record(BaseModel):
    """Frozen data that goes to JSON and comes back equal; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Config(Record):
    """A stage's settings. A field, its command-line flag and its recipe key share one name."""

    model_config = ConfigDict(allow_inf_nan=False)

    shown_defaults: ClassVar[Mapping[str, str]] = {}
    """Help text of a default that depends on other fields."""

    panel: ClassVar[str] = "Settings"
    """Title above the options of the settings that a class declares, in the help of a command."""

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Title -> settings that a class has under another title."""

    main: ClassVar[tuple[str, ...]] = ()
    """The settings that matter most, which the help of a command shows first."""

    without_flag: ClassVar[frozenset[str]] = frozenset()
    """Settings that a command takes otherwise than by a flag of their name."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = {}
    """Conflicts of settings that a class adds to those of its bases, by name."""

    @classmethod
    def all_rules(cls) -> Mapping[str, Rule[Any]]:
        """Return the rules of the class and its bases, which `parse` checks, by name."""
        classes = [each for each in cls.__mro__ if issubclass(each, Config)]
        return {name: rule for each in reversed(classes) for name, rule in each.rules.items()}

    @classmethod
    def titles(cls) -> dict[str, str | None]:
        """Return the title above each setting's option, in the order of a command's help.

        It is that of the class that declares the setting first; None of those that matter most.
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
            ConfigError: a key is unknown (the nearest known one is named) or a value is refused;
                all problems are listed at once. Or the settings break one of `all_rules`.
        """
        try:
            config = cls.model_validate(dict(values))
        except ValidationError as error:
            problems = "; ".join(cls._explain(problem) for problem in error.errors())
            raise ConfigError(problems) from None
        config.check_rules()
        return config

    def check_rules(self) -> None:
        """Raise ConfigError for the first of `all_rules` that the settings break."""
        for rule in self.all_rules().values():
            rule.check(self)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return the config with other values of some settings."""
        explicit = {name: getattr(self, name) for name in self.model_fields_set}
        return self.model_validate({**explicit, **changes})

    def is_explicit(self, name: str, *, beyond_default: bool = False) -> bool:
        """Return whether a setting was set; with `beyond_default`, to another value only."""
        default = type(self).model_fields[name].default
        return name in self.model_fields_set and not (
            beyond_default and getattr(self, name) == default
        )

    def as_set(self, names: Iterable[str]) -> str:
        """Return settings as `name=value`, by commas."""
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


C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Rule(Generic[C]):
    """A conflict of settings."""

    violated: Callable[[C], bool]
    message: str | Callable[[C], str]
    """The error, what is allowed and the next step; `{heads}` stands for a setting's value."""
    settings: frozenset[str] = frozenset()
    """The rule holds where one of them is explicit; without any, it always holds."""
    against: str | None = None
    """The setting that they conflict with, for the message."""
    beyond_default: bool = False
    """A setting that is explicit at its default value breaks no rule."""

    def check(self, config: C) -> None:
        """Raise ConfigError where the settings break the rule."""
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


def parts_of(value: Any) -> Any:
    """Return the parts of a list by commas ("1,3,5", none of ""); anything else stays as it is."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",")) if value.strip() else ()


Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows by name, in the order in which they were written; `table[name]` raises UnknownNameError.

    Args:
        noun: what a row is, for messages: "calibrator".
        rows: name -> row.
    """

    def __init__(self, noun: str, rows: Mapping[str, Row]) -> None:
        super().__init__(rows)
        self.noun = noun

    def __missing__(self, name: str) -> Row:
        raise UnknownNameError(self.noun, name, self)

    def validator(self, *also: str) -> AfterValidator:
        """Return a validator of a field: the names of the rows, those in `also`, and None."""

        def known(name: str | None, info: ValidationInfo) -> str | None:
            if name is not None and name not in self and name not in also:
                raise UnknownNameError(self.noun, name, (*also, *self), setting=info.field_name)
            return name

        return AfterValidator(known)
