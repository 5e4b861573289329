"""The table of what to try first on which machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertender.pipeline.advice import ADVICE
from bertender.report.cells import Cell, markdown_rows

__all__ = ["advice_block"]

HEADINGS: tuple[Cell, ...] = (
    ("Your machine has",),
    ("Single short texts",),
    ("Batches, or long texts",),
    ("By",),
)


def advice_block(files: Mapping[str, Path]) -> str:
    """Return a row for each row of ADVICE."""
    rows = [
        ((row.machine,), (row.single_texts,), (row.batches or "the same",), (row.basis,))
        for row in ADVICE
    ]
    return "\n".join([*markdown_rows(HEADINGS, rows, [False] * len(HEADINGS)), ""])
