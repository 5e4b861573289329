"""Cells of tables: figures with two digits, changes and intervals; and the table as Markdown."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.harness import Row, Run
from bertender.comparison.records import speedup_over_processes
from bertender.core.machine import Speedup, processor_name
from bertender.metrics import METRICS as CALCULATED
from bertender.metrics.metric import (
    POINTS,
    UNKNOWN,
    Change,
    FloatArray,
    LabelSet,
    Rows,
    percentiles,
)

DASH = "-"
TASKS = {"sst2": "SST-2", "mrpc": "MRPC", "cola": "CoLA", "rte": "RTE", "ag-news": "AG News"}
METRICS = {"f1": "F1", "matthews": "Matthews", "entity_f1": "entity F1", "tag_accuracy": "accuracy"}
NUMBER = re.compile(r"[-+~]?\d[\d.,]*(x| %| MB| ms| s)?( [\[(].*[\])])?|-|")


@dataclass(frozen=True)
class Table:
    """A table of a page, and the line below it."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the lines of the table; columns of numbers are aligned right."""
        columns = zip(*self.rows, strict=True)
        rule = ["---:" if all(map(NUMBER.fullmatch, cells)) else "---" for cells in columns]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.headings, rule, *self.rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def two(value: float | None) -> str:
    """Return a number with two significant digits, and at most three decimals."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 9.95:
        digits = len(f"{size:.0f}") - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:.1f}" if size >= 0.995 else f"{value:.2f}" if size >= 0.0995 else f"{value:.2g}"


def times(speedup: Speedup | Mapping[str, Any]) -> str:
    """Return how many times as fast something is, with its interval."""
    found = speedup if isinstance(speedup, Speedup) else Speedup(**speedup)
    return f"{two(found.value)}x [{two(found.low)}, {two(found.high)}]"


def megabytes(row: Row) -> str:
    """Return the size of an artifact on disk."""
    return two(row["size"]["artifact_size_bytes"] / 1e6)


def single_ms(row: Row) -> str:
    """Return the median time of one text."""
    return two(row["latency"]["single"]["p50_ms"])


def score(value: Mapping[str, Any] | None) -> str:
    """Return a score with its interval; a dash for none."""
    if value is None:
        return DASH
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def points(change: Change | Mapping[str, Any] | None) -> str:
    """Return a change in points, with its interval; a dash for none."""
    if change is None:
        return DASH
    found = change if isinstance(change, Change) else Change(**change)
    return f"{found.value:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


@dataclass(frozen=True)
class ResampledChange:
    """A paired change in points, and what it is in each resample."""

    value: float
    draws: FloatArray
    """(resamples,)"""

    def change(self) -> Change:
        """Return the change with its interval."""
        low, high = percentiles(self.draws)
        return Change(value=self.value, low=low, high=high)


def resampled_change(
    metric: str,
    label_ids: Rows,
    references: Sequence[Rows],
    candidates: Sequence[Rows],
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> ResampledChange:
    """Return what the candidates gain over the references on average, by a paired bootstrap.

    Both are the predictions of several models on the same rows, such as one method's students of
    several seeds. Each resample draws rows, the same for all models, and models: so the interval
    holds what other texts and what other seeds would change. Of one model alone, the seed's part
    is unknown and not in it. Changes on several data sets can be averaged where each has a seed of
    its own. Other arguments and errors are those of `score`.
    """
    models = [*references, *candidates]
    values, resampled = CALCULATED[metric].resampled(label_ids, models, labels, seed)
    first = len(references)
    generator = np.random.default_rng((seed, len(values)))
    means = [_mean_of_drawn(part, generator) for part in (resampled[:first], resampled[first:])]
    value = float(np.mean(values[first:]) - np.mean(values[:first]))
    return ResampledChange(POINTS * value, POINTS * (means[1] - means[0]))


def mean_change(changes: Sequence[ResampledChange]) -> Change:
    """Return the average of changes on several data sets, which are drawn apart."""
    draws = np.mean([each.draws for each in changes], axis=0)
    return ResampledChange(float(np.mean([each.value for each in changes])), draws).change()


def _mean_of_drawn(values: Sequence[FloatArray], generator: np.random.Generator) -> FloatArray:
    """Return the means over models that are drawn anew in each resample.

    One fewer is drawn than there are: the variance of such means is that of a mean of all of them,
    which drawing as many understates, by a third for three (McCarthy and Snowden 1985).

    Args:
        values: of each model (resamples,).
        generator: what the draws come from.
    """
    models = np.stack(values)  # (models, resamples)
    if len(models) == 1:
        return np.asarray(models[0])
    drawn = generator.integers(len(models), size=(len(models) - 1, models.shape[1]))
    return np.asarray(np.take_along_axis(models, drawn, axis=0).mean(axis=0))


def gain(run: Run, references: Sequence[Row], candidates: Sequence[Row]) -> Change:
    """Return the points that models gain over others on average; rows hold their predictions."""
    return resampled_gain(run, references, candidates).change()


def resampled_gain(
    run: Run, references: Sequence[Row], candidates: Sequence[Row], seed: int = 0
) -> ResampledChange:
    """Return `gain` with its resamples, which averages over several sets take."""
    count = run.about.get("label_count")
    return resampled_change(
        run.about["metric"],
        run.about["labels"],
        [row["predictions"] for row in references],
        [row["predictions"] for row in candidates],
        UNKNOWN if count is None else LabelSet(count=count),
        seed=seed,
    )


def mean_score(rows: Iterable[Row], key: str = "score") -> float:
    """Return the mean score of several models."""
    return statistics.mean(float(row[key]["value"]) for row in rows)


def median_ms(samples: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return the median of milliseconds, processes x rounds x texts."""
    return statistics.median(value for rounds in samples for texts in rounds for value in texts)


def batch_rounds(latency: Row) -> list[list[list[float]]]:
    """Return the milliseconds of batches in the shape of single texts."""
    return [[[value] for value in rounds] for rounds in latency["batch_ms"]]


def over(reference: Row, row: Row, key: str = "single_ms") -> Speedup:
    """Return how many times as fast as a reference a row is; both hold their latencies."""
    if key == "batch_ms":
        return speedup_over_processes(batch_rounds(reference), batch_rounds(row))
    return speedup_over_processes(reference[key], row[key])


def mean_over(values: Sequence[float]) -> Speedup:
    """Return the mean of a value of each start, with the 95 % interval of Student's t."""
    mean = statistics.fmean(values)
    half = 0.0
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = float(student.ppf(0.975, len(values) - 1)) * error
    return Speedup(value=mean, low=mean - half, high=mean + half)


def ratio_over(references: Sequence[float], candidates: Sequence[float]) -> Speedup:
    """Return how many times a candidate's figure is the reference's, of the same starts."""
    logs = [math.log(ours / theirs) for theirs, ours in zip(references, candidates, strict=True)]
    return Speedup(**{name: math.exp(value) for name, value in mean_over(logs)})


def compared_note(run: Run, more: str = "times as fast: over the first row, for one text") -> str:
    """Return the note of a table that compares models on one data set."""
    about = run.about
    return (
        f"{task_title(about['task'])}, n = {about['n']}; brackets are 95 % intervals; {more}. "
        f"{machine(run)}."
    )


def machine(run: Run) -> str:
    """Return the processor of a run, its threads and its GPU."""
    parts = [processor_name(run.environment), run.environment.gpu]
    if threads := run.about.get("threads"):
        parts.append(f"{threads} threads")
    return ", ".join(filter(None, parts))


def titled(run: Run) -> str:
    """Return the name of a run's data set and the metric."""
    metric = run.about["metric"]
    return f"{task_title(run.about['task'])}, {METRICS.get(metric, metric)}"


def task_title(task: str) -> str:
    """Return the name of a data set as its authors write it."""
    return TASKS.get(task.removesuffix("-train"), task)
