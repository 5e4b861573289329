"""The comparison table with its notes: for a terminal and in Markdown.

All figures come from a saved Comparison. A missing value is a dash, never a 0. By default a table
has the columns for a choice, and fits a terminal of 100 columns; `wide` shows all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.box import HORIZONTALS
from rich.table import Table
from rich.text import Text

from bertender.comparison.accuracy import is_below_chance
from bertender.comparison.records import (
    Comparison,
    ComparisonRow,
    Conditions,
    LengthsRead,
)
from bertender.core.findings import ChosenOn, Reliability
from bertender.core.hardware import has_int8_acceleration
from bertender.core.machine import BUSY_SHARE, Speedup
from bertender.core.progress import visible
from bertender.metrics.metric import Score
from bertender.models.runtimes import RUNTIMES

DASH = "-"
NOISY = "~"
"""Mark of figures measured on a busy machine."""
MEGABYTE = 10**6
CHOICES: Mapping[tuple[ChosenOn, ...], str] = {
    (): "no row records which texts its settings were chosen on",
    ("selection",): "settings were chosen on validation texts, which no row learned from",
    ("dev",): "settings were chosen on the same texts (select=0), which flatters what was chosen",
    ("dev", "selection"): "settings were chosen on the same texts for some rows (select=0), which "
    "flatters them, and for others on validation texts, which none of these learned from",
}
BELOW_CHANCE = (
    "its labels look swapped (--label-map), or its numbers fall where those of the data rise"
)
FEWEST_FOR_A_FRONT = 3
"""Fewest rows with a Pareto front; two can be compared by eye."""
VERSIONS_SHOWN = ("bertender", "torch", "transformers", "onnxruntime", "numpy")

Cell = tuple[str, ...]
"""A value and, for instance, its interval: stacked in a terminal, one line in Markdown."""
Key = TypeVar("Key")


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


def two_digits(value: float) -> str:
    """Return a number with two significant digits, and all before the point."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


def speedup_cell(speedup: Speedup | None) -> Cell:
    """Return a speedup and its interval, or a dash."""
    if speedup is None:
        return (DASH,)
    digits = 1 if speedup.value >= 2 else 2  # 1.04 and 1.00 are not the same result
    interval = f"[{speedup.low:.{digits}f}, {speedup.high:.{digits}f}]"
    return f"{speedup.value:.{digits}f}x", interval


def captioned_table(lines: Sequence[str], **settings: Any) -> Table:
    """Return an empty terminal table: the first line is its title, the others are below it."""
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
    lines = [
        [visible(" ".join(cell)).replace("|", "\\|") for cell in row] for row in (headings, *rows)
    ]
    return [f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:])]


def pareto_front(costs: Mapping[Key, Sequence[float]]) -> list[Key]:
    """Return the keys that no other key dominates, in order.

    A key dominates another if no cost is higher and one is lower.

    Args:
        costs: the same costs for each key; a gain, such as a score, is a negative cost.
    """

    def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
        return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))

    return [
        key
        for key, own in costs.items()
        if not any(dominates(other, own) for other in costs.values())
    ]


def best_rows(rows: Sequence[ComparisonRow]) -> list[int]:
    """Return the numbers of the rows on the Pareto front of disk, time and score; rows whose score
    is undefined are not compared."""
    return pareto_front(
        {
            place: (row.size.artifact_size_bytes, row.latency.single.p50_ms, -row.score.value)
            for place, row in enumerate(rows)
            if row.score.undefined is None
        }
    )


@dataclass(frozen=True)
class Column:
    """A column for all renderers; `unit` may name fields of the Conditions in braces."""

    title: str
    unit: str
    cell: Callable[[ComparisonRow], Cell]
    numeric: bool = True
    timed: bool = False
    optional: bool = False
    """Leave the column out if no row has a value."""

    def heading(self, conditions: Conditions) -> Cell:
        unit = self.unit.format_map(dict(conditions))
        return (self.title, unit) if unit else (self.title,)


def _score(score: Score) -> Cell:
    if score.undefined is not None:
        return (DASH,)
    return f"{score.value:.3f}", f"[{score.low:.3f}, {score.high:.3f}]"


def _change(row: ComparisonRow) -> Cell:
    if row.change is None:
        return (DASH,)
    return f"{row.change.value:+.1f}", f"[{row.change.low:+.1f}, {row.change.high:+.1f}]"


def _parity(row: ComparisonRow) -> Cell:
    if row.parity is None:
        return (DASH,)
    verdict, agreement = "passed" if row.parity.passed else "FAILED", row.parity.agreement
    return verdict, DASH if agreement is None else f"{agreement:.3f}"


def _reliability(row: ComparisonRow) -> Cell:
    if row.reliability is None:
        return (DASH,)
    error = f"{row.reliability.ece:.3f}"
    return (error, row.calibration) if row.calibration else (error,)


def _passed_on(row: ComparisonRow) -> Cell:
    return (DASH,) if row.cascade is None else (f"{row.cascade.passed_on:.0%}",)


NAME = Column("Artifact", "", lambda row: (row.name,), numeric=False)
NAME_AND_KIND = Column(
    "Artifact",
    "",
    lambda row: (row.name, f"({row.runtime or row.kind} {row.precision})"),
    numeric=False,
)
RUNS_AS = Column("Runs as", "", lambda row: (row.runtime or row.kind, row.precision), numeric=False)
DISK = Column("Disk", "MB", lambda row: (short(row.size.artifact_size_bytes / MEGABYTE),))
SCORE = Column("Score", "{metric}", lambda row: _score(row.score))
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


def _further_score(task: str) -> Column:
    def cell(row: ComparisonRow) -> Cell:
        # saved tables of earlier versions lack it for a cascade
        return _score(row.further[task]) if task in row.further else (DASH,)

    return Column(task, "{metric}", cell)


PASSED_ON = Column("Passed on", "texts", _passed_on, optional=True)
DEFAULT_COLUMNS = (NAME_AND_KIND, DISK, SCORE, CHANGE, PASSED_ON, P50, SPEEDUP, OVER_ONNX)
"""Default columns, for a choice."""
COLUMNS = (
    NAME,
    RUNS_AS,
    Column("Params", "M", lambda row: (short(row.size.millions),)),
    DISK,
    SCORE,
    CHANGE,
    PASSED_ON,
    P50,
    Column("p95", "ms", lambda row: (short(row.latency.single.p95_ms),), timed=True),
    Column("p99", "ms", lambda row: (short(row.latency.single.p99_ms),), timed=True),
    Column(
        "Batch", "{batch_texts}, ms", lambda row: (short(row.latency.batch.p50_ms),), timed=True
    ),
    Column("Texts/s", "batch", lambda row: (short(row.latency.texts_per_second),), timed=True),
    SPEEDUP,
    OVER_ONNX,
    Column("ECE", "calibrated", _reliability, optional=True),
    Column("Parity", "agreement", _parity),
)
"""All columns, for `wide`."""


def terminal_table(comparison: Comparison, wide: bool = False) -> Table:
    """Render the comparison for a terminal; intervals are below values."""
    table = captioned_table(comparison_lines(comparison), show_lines=True, padding=0)
    columns = columns_of(comparison, wide)
    for column in columns:
        table.add_column(
            Text("\n".join(column.heading(comparison.circumstances))),
            justify="right" if column.numeric else "left",
            no_wrap=True,
        )
    for row in table_rows(comparison, columns):
        table.add_row(*(Text("\n".join(cell)) for cell in row))
    return table


def markdown_table(comparison: Comparison, wide: bool = False) -> str:
    """Render the comparison in Markdown: its subject, the table, its conditions."""
    title, *notes = comparison_lines(comparison)
    columns = columns_of(comparison, wide)
    lines = markdown_rows(
        [column.heading(comparison.circumstances) for column in columns],
        table_rows(comparison, columns),
        [column.numeric for column in columns],
    )
    lines = [f"**{title}**", "", *lines, "", *(f"- {note}" for note in notes), ""]
    for table in score_tables(comparison, by_label=wide):
        numeric = [column > 0 for column in range(len(table.headings))]
        headings = [(each,) for each in table.headings]
        lines += [f"**{table.title}**", "", *markdown_rows(headings, table.rows, numeric), ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores; its first column has names."""

    title: str
    headings: list[str]
    rows: list[list[Cell]]


def score_tables(comparison: Comparison, *, by_label: bool) -> list[ScoreTable]:
    """Return a table of all scores of the rows, and one per row for its labels.

    Problem types with one metric have no such table. Rows with probabilities also have a
    reliability curve.
    """
    rows, tables = comparison.rows, []
    headings = [each.metric for each in rows[0].scores.scores]
    if len(headings) > 1:
        cells = [[(row.name,), *map(_score, row.scores.scores)] for row in rows]
        tables.append(ScoreTable("All scores", ["Artifact", *headings], cells))
    headings = ["Label", "Precision", "Recall", "F1", "There", "Predicted"]
    for row in rows if by_label else ():
        cells = [
            [
                (label,),
                *((DASH if part is None else f"{part:.3f}",) for part in own[:3]),
                *((str(count),) for count in own[3:]),
            ]
            for label, each in row.scores.by_label.items()
            for own in [(each.precision, each.recall, each.f1, each.actual, each.predicted)]
        ]
        if cells:
            tables.append(ScoreTable(f"Labels of {row.name}", headings, cells))
    if by_label:
        tables += [_curve(row.name, row.reliability) for row in rows if row.reliability]
    return tables


def _curve(name: str, found: Reliability) -> ScoreTable:
    """Return a reliability curve as a table, one bin of probabilities per row."""
    cells: list[list[Cell]] = [
        [
            (f"{own.low:.2f} to {own.high:.2f}",),
            (f"{own.confidence:.3f}",),
            (f"{own.right:.3f}",),
            (str(own.count),),
        ]
        for own in found.bins
    ]
    title = (
        f"Reliability of {name}: ECE {found.ece:.3f}, Brier score {found.brier:.3f}, "
        f"negative log-likelihood {found.nll:.3f}"
    )
    return ScoreTable(title, ["Probability", "Mean", "Right", "Predictions"], cells)


def columns_of(comparison: Comparison, wide: bool) -> list[Column]:
    """Return the columns to show, with further scores beside the first."""
    columns = [*(COLUMNS if wide else DEFAULT_COLUMNS)]
    place = columns.index(SCORE) + 1
    columns[place:place] = map(_further_score, comparison.rows[0].further)
    return [
        column
        for column in columns
        if not column.optional or any(column.cell(row) != (DASH,) for row in comparison.rows)
    ]


def table_rows(comparison: Comparison, columns: Sequence[Column]) -> list[list[Cell]]:
    """Return the cells of every row, marking those measured on a busy machine."""
    noisy = is_noisy(comparison)
    rows = [
        [marked(column.cell(row), noisy and column.timed) for column in columns]
        for row in comparison.rows
    ]
    constant = comparison.constant  # needs no model, and has two cells
    cells = {NAME.title: (constant.name,), SCORE.title: _score(constant.score)}
    return [*rows, [cells.get(column.title, (DASH,)) for column in columns]]


def is_noisy(comparison: Comparison) -> bool:
    """Return whether other work disturbed the times."""
    return comparison.circumstances.load.noisy


def marked(cell: Cell, noisy: bool) -> Cell:
    """Return a cell with the mark of noisy figures before its value, if it has one."""
    return (f"{NOISY}{cell[0]}", *cell[1:]) if noisy and cell != (DASH,) else cell


def in_one_sentence(comparison: Comparison, name: str) -> str:
    """Return the gain of a row over the first one in a sentence."""
    first, *others = comparison.rows
    row = next(each for each in others if each.name == name)
    pairs = [
        (each.size.artifact_size_bytes / 1e6, each.latency.single.p50_ms, each.score)
        for each in (row, first)
    ]
    (mb, ms, right), (first_mb, first_ms, first_right) = pairs
    if right.undefined or first_right.undefined:
        score = f"no {right.metric} to compare"
    elif right.metric == "accuracy":
        score = f"{right.value:.0%} right instead of {first_right.value:.0%}".replace("%", " %")
    else:
        score = f"{right.metric} {right.value:.2f} instead of {first_right.value:.2f}"
    time = f"{two_digits(ms)} ms a text instead of {two_digits(first_ms)}"
    noisy = " (timed on a busy machine)" if is_noisy(comparison) else ""
    return (
        f"{row.name} in place of {first.name}: {two_digits(mb)} MB instead of "
        f"{two_digits(first_mb)}, {time}{noisy}, {score}"
    )


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the notes below the table: its figures first, then its conditions."""
    rows, conditions = comparison.rows, comparison.circumstances
    lines = conditions_lines(conditions)
    if any(row.speedup_over_onnx_float32 for row in rows):
        lines.append(
            "`Over ONNX` is the speedup over the same model in ONNX Runtime float32, so that the "
            "change of runtime is not in it"
        )
    lines += [
        f"`{task}`: the same models on the {score.n} held-out texts of that task"
        for task, score in rows[0].further.items()
    ]
    lines += [_cascade_line(row, is_noisy(comparison)) for row in rows if row.cascade]
    lines += [f"`{row.name}` {row.constant.words}" for row in rows if row.constant is not None]
    lines += [
        f"`{row.name}` scores less than a guess: {BELOW_CHANCE}"
        for row in rows
        if is_below_chance(row.score, len(conditions.labels))
    ]
    constant = comparison.constant
    lines += [
        f"`{name}` has no {score.metric}: {score.undefined}"
        for name, score in (
            *((row.name, row.score) for row in rows),
            (constant.name, constant.score),
        )
        if score.undefined is not None
    ]
    truncated: dict[LengthsRead, list[str]] = {}
    for row in rows:
        if row.lengths and row.lengths.held_out.longer:
            truncated.setdefault(row.lengths, []).append(f"`{row.name}`")
    lines += [
        f"{', '.join(names)}: {read.held_out.in_words('held-out', read.max_length, read.windows)}"
        for read, names in truncated.items()
    ]
    if sum(row.score.undefined is None for row in rows) >= FEWEST_FOR_A_FRONT:
        front = ", ".join(f"`{rows[place].name}`" for place in best_rows(rows))
        (time,) = marked(("p50",), is_noisy(comparison))
        lines.append(
            f"Pareto front of disk, {time} and score, by point estimates: {front}; each of the "
            "other rows with a score is dominated by one of these"
        )
    again = comparison.noise_floor
    value, interval = marked(speedup_cell(again.speedup), is_noisy(comparison))
    return [
        *lines,
        f"noise floor, the same model ({again.name}) twice: {value} {interval}",
        f"`{constant.name}` reads no text: it is the best such answer by the training texts, "
        "or the validation texts where there are none",
    ]


def _cascade_line(row: ComparisonRow, noisy: bool) -> str:
    assert row.cascade is not None
    found, singles = row.cascade, row.latency.single_ms
    texts = [value for process in singles for each in process for value in each]
    mean, p99 = sum(texts) / len(texts), row.latency.single.p99_ms
    times = " and ".join(
        f"{marked((short(value),), noisy)[0]} ms {name}"
        for name, value in (("on average", mean), ("at p99", p99))
    )
    if not found.threshold:
        return (
            f"`{row.name}`: nothing is passed on, as {found.small} alone scores no less than "
            f"{found.strong} on {found.chosen_on} validation texts ({found.score:.3f} and "
            f"{found.strong_score:.3f}); {times} a text"
        )
    if found.threshold > 1:
        return (
            f"`{row.name}`: every text is passed on, as each lower threshold scores less than "
            f"{found.strong} on {found.chosen_on} validation texts ({found.strong_score:.3f}); "
            f"{times} a text"
        )
    return (
        f"`{row.name}`: {found.small} answers where its least probable decision has "
        f"{found.threshold:.3f} at least, and {found.strong} the other {found.passed_on:.1%} of "
        f"the held-out texts; {times} a text. The threshold is the lowest that scores no less than "
        f"{found.strong} on {found.chosen_on} validation texts ({found.score:.3f} and "
        f"{found.strong_score:.3f})"
    )


def conditions_lines(conditions: Conditions) -> list[str]:
    """Return the conditions: texts, machine, and method."""
    environment, config, lengths = conditions.environment, conditions.config, conditions.lengths
    runtimes = [RUNTIMES[name] for name in config.runtime]
    *engines, last = ["PyTorch", *(runtime.title for runtime in runtimes)]
    denied = [f"{flag} denied by the kernel" for flag in environment.denied_flags]
    flags = ", ".join(filter(None, (" ".join(environment.cpu_flags), *denied)))
    int8 = "with" if has_int8_acceleration(environment.cpu_flags) else "without"
    on_gpu = [runtime.title for runtime in runtimes if runtime.needs_gpu]
    devices = "every row ran on the CPU"
    if on_gpu:
        devices = f"rows of {' and '.join(on_gpu)} ran on {environment.gpu}, the others on the CPU"
    texts = f"texts of {short(lengths.mean_words)} words on average, {lengths.max_words} at most"
    if lengths.mean_tokens is not None:
        texts += f" ({short(lengths.mean_tokens)} and {lengths.max_tokens} tokens)"
    rounds = f"{config.rounds} rounds"
    if config.processes > 1:
        rounds = f"{config.processes} fresh processes of {rounds} each"
    shown = dict.fromkeys((*VERSIONS_SHOWN, *(runtime.package for runtime in runtimes)))
    versions = ", ".join(f"{name} {environment.versions.get(name, DASH)}" for name in shown)
    return [
        f"{conditions.task}: {conditions.metric}, n = {conditions.n}; "
        "brackets are 95 % intervals; change and speedup are against the first row",
        f"{environment.cpu_model}, {int8} int8 dot products ({flags or 'no vector flags'}); "
        f"{environment.cores} cores, {conditions.threads} threads for {', '.join(engines)} and "
        f"{last} alike",
        f"scored on the held-out texts; {CHOICES[conditions.chosen_on]}",
        f"{devices}; parity is with the model that a row was made from, in the runtime that it was "
        "checked in",
        f"{texts}; single texts at their natural length, batches padded to their longest; "
        "tokenisation included",
        f"{rounds}, rows interleaved, {config.single_texts} single texts and a batch of "
        f"{conditions.batch_texts} a round; seed {config.seed}; {conditions.measured_at}",
        _load(conditions),
        f"{versions}, Python {environment.python}",
    ]


def _load(conditions: Conditions) -> str:
    load = conditions.load
    if not load.noisy:
        return f"while it was timed, {load}"
    return (
        f"{NOISY} marks NOISY figures, not to be relied on: while they were timed, {load}; allowed "
        f"are {BUSY_SHARE:.0%}"
    )
