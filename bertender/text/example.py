"""An example before any tokenizer."""

from __future__ import annotations

import unicodedata

__all__ = ["Example", "is_blank"]

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
