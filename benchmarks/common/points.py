"""Gains of several models over others, as a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bertender.metrics.resampling import Change, LabelSet
from bertender.metrics.scores import UNKNOWN, paired_change_of_means

__all__ = ["Predicted", "gain", "gained", "points"]


class Predicted(Protocol):
    """A model's result on the texts of a benchmark."""

    @property
    def predictions(self) -> tuple[int, ...]: ...


def gain(
    metric: str,
    labels: Sequence[int],
    references: Sequence[Predicted],
    candidates: Sequence[Predicted],
) -> str:
    """Return the points that the candidates gain over the references, on average, as a cell."""
    return points(gained(metric, labels, references, candidates))


def gained(
    metric: str,
    labels: Sequence[int],
    references: Sequence[Predicted],
    candidates: Sequence[Predicted],
    *,
    label_set: LabelSet = UNKNOWN,
) -> Change:
    """Return what the candidates gain over the references, on average."""
    return paired_change_of_means(
        metric,
        labels,
        [model.predictions for model in references],
        [model.predictions for model in candidates],
        label_set,
    )


def points(change: Change) -> str:
    """Return a change in points, with its 95 % interval."""
    return f"{change.value:+.1f} [{change.low:+.1f}, {change.high:+.1f}]"
