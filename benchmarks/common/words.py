"""Words that readings share: lists of names, and on which side of a line intervals lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

__all__ = [
    "Interval",
    "above",
    "below",
    "holding",
    "listed",
    "paragraph",
    "ratio",
    "span",
    "ticked",
    "verdict",
]


class Interval(Protocol):
    """A value with its 95 % interval."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def above(intervals: Mapping[str, Interval], line: float = 0.0) -> list[str]:
    """Return the names whose whole interval lies above a line."""
    return [name for name, each in intervals.items() if each.low > line]


def below(intervals: Mapping[str, Interval], line: float = 0.0) -> list[str]:
    """Return the names whose whole interval lies below a line."""
    return [name for name, each in intervals.items() if each.high < line]


def holding(intervals: Mapping[str, Interval], line: float = 0.0) -> list[str]:
    """Return the names whose interval holds a line, so that their side of it is not known."""
    return [name for name, each in intervals.items() if each.low <= line <= each.high]


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence; "none" where there are none."""
    *first, last = list(words) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def ticked(names: Iterable[str]) -> str:
    """Return names as a list in a sentence, set as code."""
    return listed(f"`{name}`" for name in names)


def span(values: Sequence[float], digits: int, unit: str = "") -> str:
    """Return from where to where values go; one number where that is the same."""
    low, high = (f"{value:.{digits}f}{unit}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def ratio(interval: Interval) -> str:
    """Return how many times as fast something is, as the tables show it."""
    return f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def verdict(reached: bool) -> str:
    """Return in a word whether an aim is reached."""
    return "reached" if reached else "missed"


def paragraph(*sentences: str) -> str:
    """Return sentences as one paragraph; empty ones are left out."""
    return " ".join(filter(None, sentences)) + "\n"
