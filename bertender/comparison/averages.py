"""Averages of models over several tasks, as in papers on GLUE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import Field
from rich.table import Table
from rich.text import Text

from bertender.comparison.records import Comparison
from bertender.comparison.table import MEGABYTE, captioned_table, is_noisy, marked, short
from bertender.core.config import Record
from bertender.metrics.metric import Score


class Average(Record):
    """The mean of scores over tasks, in points of 100, with a 95 % interval over texts."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Average:
        """Return the mean score of one model.

        Tasks have different texts, so errors are independent and squared half intervals add up.
        """
        value = 100 * sum(score.value for score in scores) / len(scores)
        halves = [50 * (score.high - score.low) for score in scores]
        half = math.sqrt(sum(each * each for each in halves)) / len(scores)
        return cls(value=value, low=value - half, high=value + half)


class AveragedRow(Record):
    """The models of several tasks, all made by the same step of a recipe."""

    name: str
    scores: dict[str, Score] = Field(description="by task")
    average: Average | None = Field(description="None where a score is undefined")
    retained: float | None = Field(
        description="the average as a share of the first row's: a ratio of averages"
    )
    mean_size_mb: float = Field(description="on disk, 10^6 bytes")
    speedup: float | None = Field(
        description="over the first row for one text, the geometric mean over tasks; None where "
        "their tables have other first rows"
    )


class Averages(Record):
    """Scores of the models of several tasks, and their averages."""

    rows: tuple[AveragedRow, ...]
    noisy: tuple[str, ...] = Field((), description="tasks that were timed on a busy machine")


def averages(comparisons: Mapping[str, Comparison]) -> Averages:
    """Return a row for each model that every comparison has, in the order of the first.

    Args:
        comparisons: comparisons by task, all of the same step of a recipe. A step that a task does
            not take has no row in that task's comparison.
    """
    by_name = [{row.name: row for row in each.rows} for each in comparisons.values()]
    shared = [name for name in by_name[0] if all(name in each for each in by_name)]
    # the speedups of a table are over its first row
    same_first = len({each.rows[0].name for each in comparisons.values()}) == 1
    rows: list[AveragedRow] = []
    for name in shared:
        own = [each[name] for each in by_name]
        scores = {
            scored_on: score
            for task, row in zip(comparisons, own, strict=True)
            for scored_on, score in {task: row.score, **row.further}.items()
        }
        defined = all(score.undefined is None for score in scores.values())
        average = Average.of([*scores.values()]) if defined else None
        first = rows[0].average if rows else average
        speedups = [row.latency.speedup.value for row in own if row.latency.speedup]
        rows.append(
            AveragedRow(
                name=name,
                scores=scores,
                average=average,
                retained=average.value / first.value if average and first and first.value else None,
                mean_size_mb=sum(row.size.artifact_size_bytes for row in own)
                / (len(own) * MEGABYTE),
                speedup=math.exp(sum(map(math.log, speedups)) / len(speedups))
                if same_first and len(speedups) == len(own)
                else None,
            )
        )
    noisy = tuple(task for task, each in comparisons.items() if is_noisy(each))
    return Averages(rows=tuple(rows), noisy=noisy)


def averages_table(found: Averages) -> Table:
    """Render the averages for a terminal."""
    metrics = {task: score.metric for task, score in found.rows[0].scores.items()}
    lines = [
        f"{len(metrics)} scores: {', '.join(metrics)}",
        "scores and averages are in points of 100; brackets are 95 % intervals over texts",
        f"retained: the average as a share of that of {found.rows[0].name}; sizes are means, "
        "speedups geometric means",
    ]
    if found.noisy:
        lines.append(f"~ timed on a busy machine: {', '.join(found.noisy)}")
    table = captioned_table(lines, show_lines=True, padding=0)
    table.add_column("Artifact")
    for task, metric in metrics.items():
        table.add_column(Text(f"{task}\n{metric}"), justify="right")
    for heading in ("Average", "Retained", "Disk\nMB", "Speedup\nover first"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        average, retained = row.average, row.retained
        speedup = ("-" if row.speedup is None else f"{row.speedup:.1f}x",)
        cells = [
            row.name,
            *(
                "-" if score.undefined else f"{100 * score.value:.1f}"
                for score in row.scores.values()
            ),
            f"{average.value:.1f}\n[{average.low:.1f}, {average.high:.1f}]" if average else "-",
            "-" if retained is None else f"{retained:.1%}".replace("%", " %"),
            short(row.mean_size_mb),
            *marked(speedup, bool(found.noisy)),
        ]
        table.add_row(*map(Text, cells))
    return table
