"""The table of first texts of a length, from its raw result: a row for each graph and runtime."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.new_lengths.measuring import NewLengths, NewLengthsBenchmark
from bertender.core.processors import processor_name
from bertender.core.speedup import Speedup
from bertender.measure.load import busiest
from bertender.measure.samples import speedup
from bertender.models.runtimes import RUNTIMES
from bertender.report.cells import markdown_rows

__all__ = ["new_lengths_block", "times_longer"]

HEADINGS = (
    "Graph",
    "Runtime",
    "First text of a length, ms",
    "The same text later, ms",
    "First over later",
)


def new_lengths_block(file: str, path: Path) -> str:
    """Return the table, its conditions and its file, as Markdown."""
    result = NewLengthsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    heads, *rows = ([(cell,) for cell in row] for row in (HEADINGS, *map(_cells, result.rows)))
    table = "\n".join(markdown_rows(heads, rows, [place > 1 for place in range(len(HEADINGS))]))
    return f"{table}\n\n{_conditions(result)}\n\nRaw: `{file}`\n"


def times_longer(row: NewLengths) -> Speedup:
    """Return how many times as long the first text of a length takes as the same one later.

    The median over texts; its interval is of texts.
    """
    return speedup([[ms] for ms in row.first_ms], [[ms] for ms in _later(row)])


def _later(row: NewLengths) -> list[float]:
    """Return the median of each text's later runs, in milliseconds."""
    return [median(runs) for runs in zip(*row.later_ms, strict=True)]


def _cells(row: NewLengths) -> tuple[str, ...]:
    ratio = times_longer(row)
    return (
        f"{row.name}, {row.precision}",
        RUNTIMES[row.runtime].title,
        f"{median(row.first_ms):.2f}",
        f"{median(_later(row)):.2f}",
        f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]",
    )


def _conditions(result: NewLengthsBenchmark) -> str:
    here, tokens = result.environment, result.rows[0].tokens
    load = busiest([each.load for each in result.rows])
    packages = dict.fromkeys(RUNTIMES[each.runtime].package for each in result.rows)
    versions = ", ".join(f"{name} {here.versions[name]}" for name in packages)
    return (
        f"{len(tokens)} texts of {result.task}, one of each length from {min(tokens)} to "
        f"{max(tokens)} tokens, alone and in a random order, tokenisation included; a process for "
        "each row, which another text had warmed up. Medians over texts, with the interval of 95 % "
        f"of their ratio. Busiest: {load}. {processor_name(here)}, threads: {result.threads}; "
        f"{versions}."
    )
