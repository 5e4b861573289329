"""A ratio of two times, with its interval."""

from __future__ import annotations

from bertender.core.config import Record

__all__ = ["Speedup"]


class Speedup(Record):
    """Speedup over a reference, with a 95 % interval over processes and rounds.

    The interval holds the noise of the processes that were timed: few of them make it rough. It
    does not hold what differs from one machine to another.
    """

    value: float
    low: float
    high: float
