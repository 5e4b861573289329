"""Cells of tables: numbers short enough to read, a dash for what is missing, Markdown rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import HORIZONTALS
from rich.table import Table
from rich.text import Text

from bertender.core.machine import Speedup
from bertender.core.progress import visible

DASH = "-"

Cell = tuple[str, ...]
"""A value and what belongs to it (an interval): stacked in a terminal, one line in Markdown."""


def number(value: float | None) -> str:
    """Return a number with four digits, or a dash for None."""
    return DASH if value is None else f"{value:.4g}"


def short(value: float | None) -> str:
    """Return a non-negative number with about three digits, or a dash for None."""
    if value is None:
        return DASH
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def speedup_cell(speedup: Speedup | None) -> Cell:
    """Return a speedup and its interval, or a dash."""
    if speedup is None:
        return (DASH,)
    digits = 1 if speedup.value >= 2 else 2  # 1.04 and 1.00 are not the same result
    interval = f"[{speedup.low:.{digits}f}, {speedup.high:.{digits}f}]"
    return f"{speedup.value:.{digits}f}x", interval


def captioned_table(lines: Sequence[str], **settings: Any) -> Table:
    """Return an empty terminal table: the first line is its title, the others stand below it."""
    title, *notes = lines
    return Table(
        title=Text(title),
        caption=Text("\n".join(notes)),
        title_justify="left",
        caption_justify="left",
        box=HORIZONTALS,
        **settings,
    )


def markdown_rows(
    headings: Sequence[Cell], rows: Sequence[Sequence[Cell]], numeric: Sequence[bool]
) -> list[str]:
    """Return the lines of a Markdown table, numbers aligned right."""
    rule = ["---:" if right else "---" for right in numeric]
    lines = [[_escape(visible(" ".join(cell))) for cell in row] for row in (headings, *rows)]
    return [f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:])]


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
