"""Results of a metric: a score with its interval, and a change of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from bertender.core.config import Record

__all__ = ["POINTS", "Change", "LabelSet", "Score"]

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
