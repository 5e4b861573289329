"""Tables of a comparison: the wide one, and the few columns that the README shows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.words import paragraph
from benchmarks.documents.readings.distilling_gain import control_words
from benchmarks.documents.readings.speed import change_of_runtime, within_one_runtime
from bertender.core.processors import processor_name
from bertender.measure.compare import Comparison, ComparisonRow
from bertender.report.cells import markdown_rows
from bertender.report.table import (
    DISK,
    NAME,
    P50,
    RUNS_AS,
    SCORE,
    SPEEDUP,
    comparison_lines,
    markdown_table,
    table_rows,
)

__all__ = ["SHORT_COLUMNS", "comparison_block", "seed_summary", "short_block"]

SEED_SUFFIX = re.compile(r"-seed-\d+$")
SHORT_COLUMNS = (NAME, RUNS_AS, DISK, SCORE, P50, SPEEDUP)


def comparison_block(file: str, path: Path) -> str:
    """Return the table of a comparison, the summary over seeds, and the file that both are from."""
    comparison = _read(path)
    table = markdown_table(comparison, wide=True)
    return f"{table}\n{seed_summary(comparison)}\nRaw: `{file}`\n"


LONG_TABLE = ("static", "static-onnx")
"""Rows that only the full table has."""


def short_block(file: str, path: Path) -> str:
    """Return six columns of a comparison, and their reading.

    Further seeds are left out, and the static student before it is quantized.
    """
    whole = _read(path)
    rows = tuple(
        row for row in whole.rows if not (SEED_SUFFIX.search(row.name) or row.name in LONG_TABLE)
    )
    comparison = whole.model_copy(update={"rows": rows})
    conditions = comparison.circumstances
    table = markdown_rows(
        [column.heading(conditions) for column in SHORT_COLUMNS],
        table_rows(comparison, SHORT_COLUMNS),
        [column.numeric for column in SHORT_COLUMNS],
    )
    title, *_ = comparison_lines(comparison)
    words = paragraph(
        within_one_runtime(whole),
        change_of_runtime(whole),
        control_words(whole),
        f"{processor_name(conditions.environment)}, {conditions.threads} threads. Raw: `{file}`",
    )
    return "\n".join([f"**{title}**", "", *table, "", words])


def seed_summary(comparison: Comparison) -> str:
    """Return a line for each model that was trained with several seeds: mean and range."""
    groups: dict[str, list[ComparisonRow]] = {}
    for row in comparison.rows:
        groups.setdefault(SEED_SUFFIX.sub("", row.name), []).append(row)
    lines = [_seed_line(name, rows) for name, rows in groups.items() if len(rows) > 1]
    return "\n".join(lines) + "\n"


def _seed_line(name: str, rows: Sequence[ComparisonRow]) -> str:
    scores = [row.score.value for row in rows]
    listed = ", ".join(f"{score:.4f}" for score in scores)
    return (
        f"- `{name}`, {len(rows)} seeds: {rows[0].score.metric} {statistics.mean(scores):.4f} "
        f"on average ({listed})"
    )


def _read(path: Path) -> Comparison:
    return Comparison.model_validate_json(path.read_text(encoding="utf-8"))
