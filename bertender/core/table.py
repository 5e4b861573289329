"""Table: the rows of one kind of thing, by name; an unknown name raises, with the nearest."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import AfterValidator, ValidationInfo

from bertender.core.errors import ConfigError, UnknownNameError

__all__ = ["LazyTable", "Place", "Table", "installed_digest", "load_place", "on_demand"]

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
