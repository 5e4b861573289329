"""A ratio of two times on one machine, with its interval, which few processes make rough."""

from __future__ import annotations

from bertender.core.config import Record

__all__ = ["Speedup"]


class Speedup(Record):
    """Speedup over a reference, with a 95 % interval over processes and rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"
