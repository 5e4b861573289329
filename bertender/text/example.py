"""An example before any tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from bertender.core.errors import DataError

__all__ = ["Example", "is_blank", "to_examples"]

Example = tuple[str, ...]
"""The texts of one example: one, or two for a pair; of a task that labels words, the words."""

INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))
"""Unicode categories of control and format characters (zero-width ones are of these) and spaces."""
FILLERS = frozenset(
    ("\u034f", "\u115f", "\u1160", "\u2800", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10)))
)
"""Characters of other categories that show nothing either: joiners, blanks, variation selectors."""


def is_blank(text: str) -> bool:
    """Return whether a text has no character that can be seen, so that there is nothing to read."""
    return all(
        character in FILLERS or unicodedata.category(character) in INVISIBLE for character in text
    )


LONGEST_SHOWN = 80
"""Characters of a value in a message."""


def to_examples(values: object) -> list[Example]:
    """Return texts, and tuples or lists of texts, as examples: a text alone is an example of one.

    Raises:
        DataError: `values` is one text, or nothing that has several; or a row is no text and no
            tuple of texts, and the message names it.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(
            f'{_shown(values)} is not a list of texts. Give a list: ["a text"], or [("a text", '
            '"its second text")] for pairs.'
        )
    return [_to_example(row, value) for row, value in enumerate(values)]


def _to_example(row: int, value: object) -> Example:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, tuple | list):
        for part in value:
            if not isinstance(part, str):
                raise DataError(f"row {row} has {_shown(part)} among its texts. {_advice(part)}")
        return tuple(value)
    raise DataError(f"row {row} is {_shown(value)}. {_advice(value)}")


def _advice(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return "Decode it: value.decode()."
    return "Give a text, or a tuple of two for a pair."


def _shown(value: object) -> str:
    """Return a value and its type for a message."""
    text = repr(value)
    short = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return short if value is None else f"{short} ({type(value).__name__})"
