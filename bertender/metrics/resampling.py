"""Results of a metric, and the bootstrap of metrics: counts of confusions, drawn anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record

# --- from bertender.metrics.records
# Results of a metric: a score with its interval, and a change of it.

POINTS = 100.0
"""A metric point is a hundredth of the metric."""


class Score(Record):
    """A metric's value on n rows, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class LabelSet:
    """The labels of a task, as far as they are known."""

    count: int | None = None
    """None counts those that occur."""
    names: Sequence[str] = ()


class Change(Record):
    """Candidate minus reference on the same rows, in metric points, with its 95 % interval."""

    value: float = Field(description="in points: 1.0 is a hundredth of the metric")
    low: float
    high: float


# --- from bertender.metrics.resampling
# The bootstrap of metrics: counts of confusions, drawn anew.
#
# Resampling rows with replacement and counting the resample's confusions is the same as drawing
# the
# confusion counts from a multinomial, so a bootstrap here draws counts (resamples, cells) and
# never
# touches the rows again.

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Counts:
    """Counts of many confusion matrices, for the metrics; each array is (resamples, labels).

    `hits` counts the rows of a label that are predicted right, `actual` the rows of a label,
    `predicted` the rows predicted as it.
    """

    hits: FloatArray
    actual: FloatArray
    predicted: FloatArray


def resampled_cells(columns: IntArray, seed: int) -> tuple[IntArray, FloatArray]:
    """Return the distinct rows (columns, cells), and how often each resample drew them.

    Args:
        columns: labels and predictions (columns, rows).
        seed: what the draws come from.

    Returns:
        cells (columns, cells) and draws (resamples, cells).
    """
    cells, counts = np.unique(columns, axis=1, return_counts=True)
    rows = columns.shape[1]
    draws = np.random.default_rng(seed).multinomial(rows, counts / rows, size=RESAMPLES)
    return cells, draws.astype(np.float64)


def count_labels(actual: IntArray, predicted: IntArray, draws: FloatArray, labels: int) -> Counts:
    """Sum the draws (resamples, cells) by label; `actual` and `predicted` are (cells,)."""
    of_label = np.eye(labels)[actual]  # (cells, labels)
    as_label = np.eye(labels)[predicted]
    return Counts(
        hits=draws @ (of_label * as_label), actual=draws @ of_label, predicted=draws @ as_label
    )


def mean_of_drawn(values: Sequence[FloatArray], generator: np.random.Generator) -> FloatArray:
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


def percentiles(values: FloatArray) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
