"""The comparison table with its notes, for a terminal and in Markdown, from a saved Comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from bertender.comparison.accuracy import ConstantRow, is_below_chance
from bertender.comparison.cells import (
    DASH,
    Cell,
    captioned_table,
    markdown_rows,
    short,
    speedup_cell,
)
from bertender.comparison.records import Comparison, ComparisonRow, Conditions, Lengths, LengthsRead
from bertender.core.findings import ChosenOn
from bertender.core.machine import Environment, has_int8_acceleration
from bertender.core.machine_load import BUSY_SHARE
from bertender.metrics.scores import Score
from bertender.models.runtimes import RUNTIMES

# --- from bertender.report.pareto
# The Pareto front: what is worth a look where several things count.

Key = TypeVar("Key")


def pareto_front(costs: Mapping[Key, Sequence[float]]) -> list[Key]:
    """Return the keys that no other dominates, in order.

    One dominates another where it costs no more in anything, and less in something.

    Args:
        costs: of each key the same things; a gain, as a score, is a cost below 0.
    """
    return [
        key
        for key, own in costs.items()
        if not any(_dominates(other, own) for other in costs.values())
    ]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))


# --- from bertender.report.notes
# Notes of a comparison's table: what was measured, its conditions, and its limits.

NOISY = "~"
"""Stands before every figure that was timed on a busy machine."""
CHOICES: Mapping[tuple[ChosenOn, ...], str] = {
    (): "no row records which texts its settings were chosen on",
    ("selection",): "settings were chosen on texts set apart, that no row learned from",
    ("dev",): "settings were chosen on the same texts (select=0), which flatters what was chosen",
    ("dev", "selection"): "settings were chosen on the same texts for some rows (select=0), which "
    "flatters them, and for others on texts set apart, that none of these learned from",
}
FEWEST_FOR_A_FRONT = 3
"""Rows; two can be compared by eye."""
VERSIONS_SHOWN = ("bertender", "torch", "transformers", "onnxruntime", "numpy")


def is_noisy(comparison: Comparison) -> bool:
    """Return whether other work disturbed what was timed."""
    load = comparison.circumstances.load
    return load is not None and load.noisy


def marked(cell: Cell, noisy: bool) -> Cell:
    """Return a cell with the mark of noisy figures before its value, where it has one."""
    return (f"{NOISY}{cell[0]}", *cell[1:]) if noisy and cell != (DASH,) else cell


def in_one_sentence(comparison: Comparison, name: str) -> str:
    """Return the gain of a row over the first one, for someone who reads no table."""
    first, *others = comparison.rows
    row = next(each for each in others if each.name == name)
    pairs = [
        (each.size.artifact_size_bytes / 1e6, each.latency.single.p50_ms, each.score.value)
        for each in (row, first)
    ]
    (mb, ms, right), (first_mb, first_ms, first_right) = pairs
    score = f"{row.score.metric} {right:.2f} instead of {first_right:.2f}"
    if row.score.metric == "accuracy":
        score = f"{right:.0%} right instead of {first_right:.0%}".replace("%", " %")
    time = f"{_two_digits(ms)} ms a text instead of {_two_digits(first_ms)}"
    noisy = " (timed on a busy machine)" if is_noisy(comparison) else ""
    return (
        f"{row.name} in place of {first.name}: {_two_digits(mb)} MB instead of "
        f"{_two_digits(first_mb)}, {time}{noisy}, {score}"
    )


def _two_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return all that a reader needs to judge the table: what was measured first, then how."""
    lines = conditions_lines(comparison.circumstances)
    if any(row.speedup_over_onnx_float32 for row in comparison.rows):
        lines.append(
            "`Over ONNX` is the speedup over the same model in ONNX Runtime float32, so that the "
            "change of runtime is not in it"
        )
    lines += [
        f"`{row.name}` {row.constant.words}" for row in comparison.rows if row.constant is not None
    ]
    lines += [
        f"`{row.name}` scores less than a guess: its labels look swapped (--label-map)"
        for row in comparison.rows
        if is_below_chance(row.score, len(comparison.circumstances.labels))
    ]
    lines += _cut(comparison)
    lines += _front(comparison)
    if again := comparison.noise_floor:
        value, interval = marked(speedup_cell(again.speedup), is_noisy(comparison))
        lines.append(f"noise floor, the same model ({again.name}) twice: {value} {interval}")
    if constant := comparison.constant:
        lines.append(
            f"`{constant.name}` reads no text: it is the most frequent label of the texts to learn "
            "from, or to choose by where there are none"
        )
    return lines


def _cut(comparison: Comparison) -> list[str]:
    """Return a line about the texts that rows have truncated, one for rows that did alike."""
    alike: dict[LengthsRead, list[str]] = {}
    for row in comparison.rows:
        if row.lengths and row.lengths.held_out.longer:
            alike.setdefault(row.lengths, []).append(f"`{row.name}`")
    return [
        f"{', '.join(names)}: {read.held_out.in_words('held-out', read.max_length)}"
        for read, names in alike.items()
    ]


def _front(comparison: Comparison) -> list[str]:
    """Return a line that names the Pareto front of the rows; none of fewer than three rows."""
    rows = comparison.rows
    if len(rows) < FEWEST_FOR_A_FRONT:
        return []
    costs = {
        place: (row.size.artifact_size_bytes, row.latency.single.p50_ms, -row.score.value)
        for place, row in enumerate(rows)
    }
    names = ", ".join(f"`{rows[place].name}`" for place in pareto_front(costs))
    (time,) = marked(("p50",), is_noisy(comparison))
    return [
        f"Pareto front of disk, {time} and score, by point estimates: {names}; each of the other "
        "rows is dominated by one of these"
    ]


def _flags(environment: Environment) -> str:
    denied = [f"{flag} denied by the kernel" for flag in environment.denied_flags]
    return ", ".join(filter(None, (" ".join(environment.cpu_flags), *denied))) or "no vector flags"


def conditions_lines(conditions: Conditions) -> list[str]:
    """Return what a reader needs to judge the table: what was measured first, then how."""
    environment, config = conditions.environment, conditions.config
    versions = environment.versions
    int8 = "with" if has_int8_acceleration(environment) else "without"
    return [
        f"{conditions.task}: {conditions.metric}, n = {conditions.n}; "
        "brackets are 95 % intervals; change and speedup are against the first row",
        f"{environment.cpu_model}, {int8} int8 dot products "
        f"({_flags(environment)}); {environment.cores} cores, "
        f"{conditions.threads} threads for {_engines(config.runtime)} alike",
        *_choices(conditions.chosen_on),
        f"{_devices(environment, config.runtime)}; parity is with the model that a row was made "
        "from, in the runtime that it was checked in",
        f"{_lengths(conditions.lengths)}; single texts at their natural length, batches padded "
        "to their longest; tokenisation included",
        f"{_rounds(config.processes, config.rounds)}, rows interleaved, {config.single_texts} "
        f"single texts and a batch of {conditions.batch_texts} a round; seed {config.seed}; "
        f"{conditions.measured_at}",
        _load(conditions),
        ", ".join(f"{name} {versions.get(name, DASH)}" for name in _versions(config.runtime))
        + f", Python {environment.python}",
    ]


def _engines(runtimes: Sequence[str]) -> str:
    *others, last = ["PyTorch", *(RUNTIMES[name].title for name in runtimes)]
    return f"{', '.join(others)} and {last}"


def _devices(environment: Environment, runtimes: Sequence[str]) -> str:
    titles = [RUNTIMES[name].title for name in runtimes if RUNTIMES[name].needs_gpu]
    if not titles:
        return "every row ran on the CPU"
    return f"rows of {' and '.join(titles)} ran on {environment.gpu}, the others on the CPU"


def _versions(runtimes: Sequence[str]) -> list[str]:
    """Return the packages whose versions are shown, each once."""
    return [*dict.fromkeys((*VERSIONS_SHOWN, *(RUNTIMES[name].package for name in runtimes)))]


def _choices(chosen_on: Sequence[ChosenOn] | None) -> list[str]:
    """Return what was chosen and what scored; nothing for files that do not record it."""
    return [] if chosen_on is None else [f"scored on the held-out texts; {CHOICES[*chosen_on]}"]


def _rounds(processes: int, rounds: int) -> str:
    each = f"{rounds} rounds"
    return each if processes == 1 else f"{processes} fresh processes of {each} each"


def _load(conditions: Conditions) -> str:
    load = conditions.load
    if load is None:
        return f"other work while it was timed: {DASH} (load not recorded)"
    if not load.noisy:
        return f"while it was timed, {load}"
    return (
        f"{NOISY} marks NOISY figures, not to be relied on: while they were timed, {load}; allowed "
        f"are {BUSY_SHARE:.0%}"
    )


def _lengths(lengths: Lengths) -> str:
    words = f"texts of {short(lengths.mean_words)} words on average, {lengths.max_words} at most"
    if lengths.mean_tokens is None:
        return words
    return f"{words} ({short(lengths.mean_tokens)} and {lengths.max_tokens} tokens)"


# --- from bertender.report.table
# The comparison table, for a terminal and in Markdown, from a saved Comparison only.
#
# Nothing is measured here. What is missing is a dash, never a 0. By default a table has the
# columns
# that a choice is made by, and fits a terminal of 100 columns; `wide` shows all.

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
