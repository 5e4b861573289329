"""The table of what to try first on which machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.pipeline.advice import ADVICE, Advice
from bertender.report.cells import Cell, markdown_rows

__all__ = ["advice_block"]

HEADINGS: tuple[Cell, ...] = (
    ("Your machine has",),
    ("Single short texts",),
    ("Batches, or long texts",),
    ("Why",),
    ("By",),
)


def _cells(row: Advice) -> Sequence[str]:
    batches = row.batches or "the same"
    return row.machine, row.single_texts, batches, row.why, row.basis


def advice_block(files: Mapping[str, Path]) -> str:
    """Return a row for each row of ADVICE."""
    rows = [tuple((cell,) for cell in _cells(row)) for row in ADVICE]
    return "\n".join([*markdown_rows(HEADINGS, rows, [False] * len(HEADINGS)), ""])
