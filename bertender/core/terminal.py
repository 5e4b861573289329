"""Texts and names of others on a terminal, which must show them and obey nothing in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

__all__ = ["SafeConsole", "visible"]

CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control characters, halves of pairs, separators of lines."""
ORDER_OF_TEXT = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
"""Characters that swap the order of what stands around them."""


def visible(text: str, spared: str = "") -> str:
    r"""Return a text with its control characters escaped, as in "\x1b[2J" for one that clears the
    screen; `spared` are left as they are."""
    if text.isprintable():
        return text
    return "".join(
        each if each in spared or not _is_control(each) else each.encode("unicode_escape").decode()
        for each in text
    )


def _is_control(character: str) -> bool:
    return character in ORDER_OF_TEXT or unicodedata.category(character) in CONTROLS


class SafeConsole(Console):
    """A console that shows the control characters of what is printed, but for the ends of lines."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # rich's own
                yield segment
            else:
                yield Segment(visible(segment.text, spared="\n\t"), segment.style)
