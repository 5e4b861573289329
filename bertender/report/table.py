"""The comparison table, for a terminal and in Markdown, from a saved Comparison only.

Nothing is measured here. What is missing is a dash, never a 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from bertender.core.environment import has_int8_acceleration
from bertender.measure.comparison import Circumstances, Comparison, ComparisonRow, Lengths
from bertender.report.cells import DASH, Cell, captioned_table, markdown_rows, short
from bertender.tasks.task import ChosenOn

__all__ = [
    "CHOICES",
    "COLUMNS",
    "Column",
    "circumstances_lines",
    "markdown_table",
    "terminal_table",
]

MEGABYTE = 10**6
MILLION = 10**6
NAME_WIDTH = 16
"""Longer names go on below, none of their letters lost."""
CHOICES: Mapping[tuple[ChosenOn, ...], str] = {
    ("selection",): "settings were chosen on texts of the training file that no row learned from",
    ("dev",): "settings were chosen on the same texts (select=0), which flatters what was chosen",
    ("dev", "selection"): "settings were chosen on the same texts for some rows (select=0), which "
    "flatters them, and for others on texts of the training file that none of these learned from",
}
VERSIONS_SHOWN = ("bertender", "torch", "transformers", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Column:
    """A column, whoever renders it; `unit` may name fields of the Circumstances in braces."""

    title: str
    unit: str
    cell: Callable[[ComparisonRow], Cell]
    numeric: bool = True
    no_wrap: bool = True

    def heading(self, circumstances: Circumstances) -> Cell:
        unit = self.unit.format_map(dict(circumstances))
        return (self.title, unit) if unit else (self.title,)


def terminal_table(comparison: Comparison) -> Table:
    """Render the comparison for a terminal of 120 columns or more; intervals stand below."""
    circumstances = comparison.circumstances
    table = captioned_table(circumstances_lines(circumstances), show_lines=True, padding=0)
    for column in COLUMNS:
        table.add_column(
            Text("\n".join(column.heading(circumstances))),
            justify="right" if column.numeric else "left",
            no_wrap=column.no_wrap,
            min_width=None if column.no_wrap else NAME_WIDTH,
            overflow="fold",
        )
    for row in comparison.rows:
        table.add_row(*(Text("\n".join(column.cell(row))) for column in COLUMNS))
    return table


def markdown_table(comparison: Comparison) -> str:
    """Render the comparison in Markdown: what was measured, the table, its circumstances."""
    circumstances = comparison.circumstances
    title, *notes = circumstances_lines(circumstances)
    lines = markdown_rows(
        [column.heading(circumstances) for column in COLUMNS],
        [[column.cell(row) for column in COLUMNS] for row in comparison.rows],
        [column.numeric for column in COLUMNS],
    )
    return "\n".join([f"**{title}**", "", *lines, "", *(f"- {note}" for note in notes), ""])


def circumstances_lines(circumstances: Circumstances) -> list[str]:
    """Return what a reader needs to judge the table: what was measured first, then how."""
    environment, config = circumstances.environment, circumstances.config
    versions = environment.versions
    int8 = "with" if has_int8_acceleration(environment) else "without"
    return [
        f"{circumstances.task}: {circumstances.metric}, n = {circumstances.n}; "
        "brackets are 95 % intervals; change and speedup are against the first row",
        f"{environment.cpu_model}, {int8} int8 dot products "
        f"({' '.join(environment.cpu_flags) or 'no vector flags'}); {environment.cores} cores, "
        f"{circumstances.threads} threads for PyTorch and ONNX Runtime alike",
        *_choices(circumstances.chosen_on),
        "every row ran on the CPU; parity is with the model that a row was made from",
        f"{_lengths(circumstances.lengths)}; single texts at their natural length, batches padded "
        "to their longest; tokenisation included",
        f"{config.rounds} rounds, rows interleaved, {config.single_texts} single texts and a "
        f"batch of {circumstances.batch_texts} a round; seed {config.seed}; "
        f"{circumstances.measured_at}",
        ", ".join(f"{name} {versions.get(name, DASH)}" for name in VERSIONS_SHOWN)
        + f", Python {environment.python}",
    ]


def _choices(chosen_on: Sequence[ChosenOn] | None) -> list[str]:
    """Return what was chosen and what scored; nothing for files that do not say."""
    return [] if chosen_on is None else [f"scored on the held-out texts; {CHOICES[*chosen_on]}"]


def _lengths(lengths: Lengths) -> str:
    words = f"texts of {short(lengths.mean_words)} words on average, {lengths.max_words} at most"
    if lengths.mean_tokens is None:
        return words
    return f"{words} ({short(lengths.mean_tokens)} and {lengths.max_tokens} tokens)"


def _score(row: ComparisonRow) -> Cell:
    score = row.score
    return f"{score.value:.3f}", f"[{score.low:.3f}, {score.high:.3f}]"


def _change(row: ComparisonRow) -> Cell:
    if row.change is None:
        return (DASH,)
    return f"{row.change.value:+.1f}", f"[{row.change.low:+.1f}, {row.change.high:+.1f}]"


def _speedup(row: ComparisonRow) -> Cell:
    speedup = row.latency.speedup
    digits = 1 if speedup.value >= 2 else 2  # 1.04 and 1.00 are not the same answer
    interval = f"[{speedup.low:.{digits}f}, {speedup.high:.{digits}f}]"
    return f"{speedup.value:.{digits}f}x", interval


def _parity(row: ComparisonRow) -> Cell:
    if row.parity is None:
        return (DASH,)
    verdict = "passed" if row.parity.passed else "FAILED"
    agreement = row.parity.agreement
    return verdict, DASH if agreement is None else f"{agreement:.3f}"


COLUMNS = (
    Column("Artifact", "", lambda row: (row.name,), numeric=False, no_wrap=False),
    Column("Runs as", "", lambda row: (row.kind, row.precision), numeric=False),
    Column("Params", "M", lambda row: (short(row.size.parameters / MILLION),)),
    Column("Disk", "MB", lambda row: (short(row.size.artifact_size_bytes / MEGABYTE),)),
    Column("Score", "{metric}", _score),
    Column("Change", "points", _change),
    Column("p50", "ms", lambda row: (short(row.latency.single.p50_ms),)),
    Column("p95", "ms", lambda row: (short(row.latency.single.p95_ms),)),
    Column("p99", "ms", lambda row: (short(row.latency.single.p99_ms),)),
    Column("Batch", "{batch_texts}, ms", lambda row: (short(row.latency.batch.p50_ms),)),
    Column("Texts/s", "batch", lambda row: (short(row.latency.texts_per_second),)),
    Column("Speedup", "single", _speedup),
    Column("Parity", "agreement", _parity),
)
