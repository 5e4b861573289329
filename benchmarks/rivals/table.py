"""The table of one model in other libraries and in bertender, from its raw result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.words import ticked
from benchmarks.rivals.figures import RivalFigures, over, over_in_batches
from benchmarks.rivals.libraries import RIVALS
from benchmarks.rivals.reading import rivals_reading
from benchmarks.rivals.records import RivalBenchmark, RivalRow
from bertender.core.processors import processor_name
from bertender.measure.load import busiest
from bertender.report.cells import number

__all__ = ["rivals_block"]

TITLES = (
    "Library",
    "Model",
    "one {}, p50 ms",
    "speed",
    "in batches, {}s/s",
    "speed",
    "same label",
    "largest difference of a probability",
    "accuracy",
)


def rivals_block(file: str, path: Path) -> str:
    """Return the table, the rows that are missing, the reading and the conditions, as Markdown."""
    result = RivalBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    figures = RivalFigures(result)
    lines = [
        _line([title.format(result.unit) for title in TITLES]),
        _line(["---", "---", *["---:"] * (len(TITLES) - 2)]),
        *(_line(_cells(figures, row)) for row in figures.rows),
        "",
        *(f"- Not measured, `{name}`: {why}" for name, why in result.measured.absent.items()),
        *_left_out(result),
        *_notes(result),
        *rivals_reading(figures),
        "",
        _conditions(figures),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(figures: RivalFigures, row: RivalRow) -> list[str]:
    own, first = figures.latency[row.name], figures.reference
    return [
        f"{RIVALS[row.rival].title} (`{row.name}`)",
        f"{row.artifact}, {RIVALS[row.rival].computes_in(row.precision)}",
        f"{own.single.p50_ms:.2f}",
        str(over(first, own)),
        number(own.texts_per_second),
        str(over_in_batches(first, own)),
        f"{row.agreement:.4f}",
        f"{row.max_probability_difference:.1g}",
        f"{row.score.value:.4f}",
    ]


def _left_out(result: RivalBenchmark) -> list[str]:
    """Return a line with the rivals that could have been asked for, and were not."""
    measured = result.measured
    asked = {row.rival for row in measured.rows} | {name.split()[0] for name in measured.absent}
    able = [name for name, row in RIVALS.items() if row.single_texts or result.of_pairs]
    names = [name for name in able if name not in asked]
    return [f"- Not asked for in this run: {ticked(names)}."] if names else []


def _notes(result: RivalBenchmark) -> list[str]:
    noted = {row.rival: RIVALS[row.rival].note for row in result.measured.rows}
    return [f"- `{name}` {note}." for name, note in noted.items() if note]


def _conditions(figures: RivalFigures) -> str:
    result = figures.result
    reports, here = result.measured.repetitions, result.environment
    first, one = result.measured.rows[0], reports[0]
    load = busiest([report.load for report in reports if report.load])
    versions = {
        name: version for row in result.measured.rows for name, version in row.versions.items()
    }
    return (
        f"{result.n} held-out {result.unit}s of {result.task}, cut at {result.max_length} "
        f"tokens; {result.unit} in, "
        "probabilities out, tokenisation included, at natural length, in batches of "
        f"{one.batch_texts}. A process for each row, {len(reports)} repetitions of "
        f"{result.config.rounds} rounds, all rows in turns. Speeds are over `{first.name}`, with "
        "intervals of 95 % over repetitions and rounds; labels and probabilities are compared with "
        f"its own. Noise floor (`{first.name}` timed a second time): "
        f"{figures.noise_floor}. Busiest repetition: {load}. {processor_name(here)}, threads: "
        f"{one.threads}; {', '.join(f'{name} {each}' for name, each in versions.items())}."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
