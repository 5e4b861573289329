"""Table: the rows of one kind of thing, by name; an unknown name raises, with the nearest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeVar

from pydantic import AfterValidator

from bertender.core.errors import UnknownNameError

__all__ = ["Table"]

Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows by name, in the order in which they were written; `table[name]` raises UnknownNameError.

    A dict, whose `in` and `get` stay what they are; nothing but tests adds a row later.

    Args:
        noun: what a row is, for messages: "calibrator".
        rows: name -> row.
    """

    def __init__(self, noun: str, rows: Mapping[str, Row]) -> None:
        super().__init__(rows)
        self.noun = noun

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownNameError(self.noun, name, self)

    def validator(self, *also: str) -> AfterValidator:
        """Return a validator of a field: the names of the rows, those in `also`, and None."""

        def known(name: str | None) -> str | None:
            if name is not None and name not in self and name not in also:
                raise UnknownNameError(self.noun, name, (*also, *self))
            return name

        return AfterValidator(known)
