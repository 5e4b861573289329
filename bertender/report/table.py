"""The comparison table, for a terminal and in Markdown, from a saved Comparison only.

Nothing is measured here. What is missing is a dash, never a 0. By default a table has the columns
that a choice is made by, and fits a terminal of 100 columns; `wide` shows all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from bertender.measure.comparison import Comparison, ComparisonRow, Conditions
from bertender.measure.constant import ConstantRow
from bertender.metrics.scores import Score
from bertender.report.cells import (
    DASH,
    Cell,
    captioned_table,
    markdown_rows,
    short,
    speedup_cell,
)
from bertender.report.notes import comparison_lines, conditions_lines, is_noisy, marked

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "DISK",
    "NAME",
    "P50",
    "RUNS_AS",
    "SCORE",
    "SPEEDUP",
    "Column",
    "columns_of",
    "comparison_lines",
    "conditions_lines",
    "markdown_table",
    "table_rows",
    "terminal_table",
]

MEGABYTE = 10**6


def _no_model(constant: ConstantRow) -> Cell:
    return (DASH,)


@dataclass(frozen=True)
class Column:
    """A column, for every renderer; `unit` may name fields of the Conditions in braces."""

    title: str
    unit: str
    cell: Callable[[ComparisonRow], Cell]
    constant: Callable[[ConstantRow], Cell] = _no_model
    """The cell of the row that needs no model."""
    numeric: bool = True
    timed: bool = False
    optional: bool = False
    """Left out where no row has a value."""

    def heading(self, conditions: Conditions) -> Cell:
        unit = self.unit.format_map(dict(conditions))
        return (self.title, unit) if unit else (self.title,)


def terminal_table(comparison: Comparison, wide: bool = False) -> Table:
    """Render the comparison for a terminal, as wide as its cells; intervals stand below."""
    conditions = comparison.circumstances
    table = captioned_table(comparison_lines(comparison), show_lines=True, padding=0)
    columns = columns_of(comparison, wide)
    for column in columns:
        table.add_column(
            Text("\n".join(column.heading(conditions))),
            justify="right" if column.numeric else "left",
            no_wrap=True,
        )
    for row in table_rows(comparison, columns):
        table.add_row(*(Text("\n".join(cell)) for cell in row))
    return table


def markdown_table(comparison: Comparison, wide: bool = False) -> str:
    """Render the comparison in Markdown: what was measured, the table, its conditions."""
    conditions = comparison.circumstances
    title, *notes = comparison_lines(comparison)
    columns = columns_of(comparison, wide)
    lines = markdown_rows(
        [column.heading(conditions) for column in columns],
        table_rows(comparison, columns),
        [column.numeric for column in columns],
    )
    return "\n".join([f"**{title}**", "", *lines, "", *(f"- {note}" for note in notes), ""])


def columns_of(comparison: Comparison, wide: bool) -> list[Column]:
    """Return the columns to show."""
    return [
        column
        for column in (COLUMNS if wide else DEFAULT_COLUMNS)
        if not column.optional or any(column.cell(row) != (DASH,) for row in comparison.rows)
    ]


def table_rows(comparison: Comparison, columns: Sequence[Column]) -> list[list[Cell]]:
    """Return the cells of every row, with those that were timed on a busy machine marked."""
    noisy = is_noisy(comparison)
    rows = [
        [marked(column.cell(row), noisy and column.timed) for column in columns]
        for row in comparison.rows
    ]
    constant = comparison.constant
    return [*rows, [column.constant(constant) for column in columns]] if constant else rows


def _name(row: ComparisonRow) -> Cell:
    return row.name, f"({row.runtime or row.kind} {row.precision})"


def _score(score: Score) -> Cell:
    return f"{score.value:.3f}", f"[{score.low:.3f}, {score.high:.3f}]"


def _change(row: ComparisonRow) -> Cell:
    if row.change is None:
        return (DASH,)
    return f"{row.change.value:+.1f}", f"[{row.change.low:+.1f}, {row.change.high:+.1f}]"


def _parity(row: ComparisonRow) -> Cell:
    if row.parity is None:
        return (DASH,)
    verdict = "passed" if row.parity.passed else "FAILED"
    agreement = row.parity.agreement
    return verdict, DASH if agreement is None else f"{agreement:.3f}"


NAME = Column(
    "Artifact", "", lambda row: (row.name,), constant=lambda it: (it.name,), numeric=False
)
NAME_AND_KIND = Column("Artifact", "", _name, constant=lambda it: (it.name,), numeric=False)
RUNS_AS = Column("Runs as", "", lambda row: (row.runtime or row.kind, row.precision), numeric=False)
DISK = Column("Disk", "MB", lambda row: (short(row.size.artifact_size_bytes / MEGABYTE),))
SCORE = Column(
    "Score", "{metric}", lambda row: _score(row.score), constant=lambda it: _score(it.score)
)
CHANGE = Column("Change", "points", _change)
P50 = Column("p50", "ms", lambda row: (short(row.latency.single.p50_ms),), timed=True)
SPEEDUP = Column("Speedup", "over first", lambda row: speedup_cell(row.latency.speedup), timed=True)
OVER_ONNX = Column(
    "Over ONNX",
    "own float32",
    lambda row: speedup_cell(row.speedup_over_onnx_float32),
    timed=True,
    optional=True,
)

DEFAULT_COLUMNS = (NAME_AND_KIND, DISK, SCORE, CHANGE, P50, SPEEDUP, OVER_ONNX)
"""Columns that a choice is made by."""
COLUMNS = (
    NAME,
    RUNS_AS,
    Column("Params", "M", lambda row: (short(row.size.millions),)),
    DISK,
    SCORE,
    CHANGE,
    P50,
    Column("p95", "ms", lambda row: (short(row.latency.single.p95_ms),), timed=True),
    Column("p99", "ms", lambda row: (short(row.latency.single.p99_ms),), timed=True),
    Column(
        "Batch", "{batch_texts}, ms", lambda row: (short(row.latency.batch.p50_ms),), timed=True
    ),
    Column("Texts/s", "batch", lambda row: (short(row.latency.texts_per_second),), timed=True),
    SPEEDUP,
    OVER_ONNX,
    Column("Parity", "agreement", _parity),
)
"""All of them, for `wide`."""
