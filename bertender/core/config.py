"""Settings that are frozen, typed and strict about their keys, and tables of names."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from bertender.core.errors import ConfigError, UnknownNameError, nearest_hint

# --- from bertender.core.config
# The base of every configuration: frozen, typed, and strict about its keys.


class Record(BaseModel):
    """Frozen data that goes to JSON and comes back equal; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Config(Record):
    """A stage's settings. A field, its command-line flag and its recipe key share one name."""

    model_config = ConfigDict(allow_inf_nan=False)

    shown_defaults: ClassVar[Mapping[str, str]] = {}
    """Help text of a default that depends on other fields."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = {}
    """Conflicts of settings that a class adds to those of its bases, by name."""

    @classmethod
    def all_rules(cls) -> Mapping[str, Rule[Any]]:
        """Return the rules of the class and its bases, which `parse` checks, by name."""
        classes = [each for each in cls.__mro__ if issubclass(each, Config)]
        return {name: rule for each in reversed(classes) for name, rule in each.rules.items()}

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
        raise ConfigError(settings + self._explained(config))

    def _explained(self, config: C) -> str:
        if callable(self.message):
            return self.message(config)
        return self.message.format_map(dict(config))


def parts_of(value: Any) -> Any:
    """Return the parts of a list by commas ("1,3,5", none of ""); anything else stays as it is."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",")) if value.strip() else ()


# --- from bertender.core.table
# Table: the rows of one kind of thing, by name; an unknown name raises, with the nearest.

Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows by name, in the order in which they were written; `table[name]` raises UnknownNameError.

    Args:
        noun: what a row is, for messages: "calibrator".
        rows: name -> row.
        group: the entry points by which installed packages add rows. They are looked up where a
            name is none of `rows`, so that no package is imported before one of its rows is needed,
            and none replaces a row.
    """

    def __init__(self, noun: str, rows: Mapping[str, Row], group: str | None = None) -> None:
        super().__init__(rows)
        self.noun = noun
        self.group = group

    def __missing__(self, name: str) -> Row:
        points = self._entry_points(name)
        if not points:
            raise UnknownNameError(self.noun, name, (*self, *self._installed()))
        try:
            self[name] = points[0].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{self.noun} {name!r} is of an installed package, at {points[0].value!r}, which "
                f"cannot be imported: {error}. Repair the package, or uninstall it."
            ) from error
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a row, or the default where there is none, installed packages' included."""
        try:
            return self[name]
        except UnknownNameError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self._entry_points(name))

    def _entry_points(self, name: object) -> Sequence[EntryPoint]:
        """Return the entry points of a row that an installed package adds."""
        if self.group is None or not isinstance(name, str):
            return ()
        return [*entry_points(group=self.group, name=name)]

    def _installed(self) -> list[str]:
        """Return the names of rows that installed packages add; nothing is imported."""
        names = {point.name for point in entry_points(group=self.group)} if self.group else set()
        return sorted(names - self.keys())

    def validator(self, *also: str) -> AfterValidator:
        """Return a validator of a field: the names of the rows, those in `also`, and None."""
        return _names_of(self.noun, self, also)


def _names_of(noun: str, names: Mapping[str, Any], also: tuple[str, ...]) -> AfterValidator:
    def known(name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and name not in names and name not in also:
            raise UnknownNameError(noun, name, (*also, *names), setting=info.field_name)
        return name

    return AfterValidator(known)


@dataclass(frozen=True)
class Place:
    """Where a row is written, and what is known of it before its module is imported."""

    path: str
    """`module:NAME`"""
    summary: str

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]


def load_place(path: str) -> Any:
    """Return what `module:NAME` names; the module is imported now."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def installed_digest(group: str, name: str) -> str | None:
    """Return the digest of the file that an installed package's row is in; None of a row of ours.

    Args:
        group: the entry points, such as "bertender.problems".
        name: of the row.
    """
    points = [*entry_points(group=group, name=name)]
    spec = importlib.util.find_spec(points[0].module) if points else None
    if spec is None or spec.origin is None:
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def on_demand(path: str) -> Callable[..., Any]:
    """Return a function that calls what `module:NAME` names; its first call imports the module.

    Its `__module__` is that module, whose code it is.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return load_place(path)(*args, **kwargs)

    call.__module__, _, call.__name__ = path.partition(":")
    return call


class LazyTable(Mapping[str, Row], Generic[Row]):
    """Rows that lie in modules which are imported when a row is asked for.

    So a table may list what stands above its own module, and naming a row loads no library.

    Args:
        noun: what a row is, for messages: "stage".
        places: name -> place of the row.
    """

    def __init__(self, noun: str, places: Mapping[str, Place]) -> None:
        self.noun = noun
        self.places = dict(places)

    def __getitem__(self, name: str) -> Row:
        if name not in self.places:
            raise UnknownNameError(self.noun, name, self.places)
        return cast(Row, load_place(self.places[name].path))

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def summaries(self) -> dict[str, str]:
        """Return each row's summary by its name; nothing is imported."""
        return {name: place.summary for name, place in self.places.items()}

    def validator(self, *also: str) -> AfterValidator:
        """Return a validator of a field: the names of the rows, those in `also`, and None."""
        return _names_of(self.noun, self, also)
