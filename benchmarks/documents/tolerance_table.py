"""The bounds of the parity gate for each precision, made from its tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertender.measure.parity_checks import CHECKS
from bertender.measure.tolerances import TOLERANCES
from bertender.report.cells import DASH, Cell, markdown_rows

__all__ = ["tolerances_block"]


def tolerances_block(files: Mapping[str, Path]) -> str:
    """Return a row for each check and a column for each tolerance."""
    headings: tuple[Cell, ...] = (("Check",), *((f"`{name}`",) for name in TOLERANCES))
    rows = [
        [(f"`{check.figure}`, at {'most' if check.at_most else 'least'}",), *_bounds(check.bound)]
        for check in CHECKS
    ]
    return "\n".join(markdown_rows(headings, rows, [False, *[True] * len(TOLERANCES)])) + "\n"


def _bounds(name: str) -> list[Cell]:
    bounds = (getattr(tolerance, name) for tolerance in TOLERANCES.values())
    return [(DASH,) if bound is None else (f"{bound:g}",) for bound in bounds]
