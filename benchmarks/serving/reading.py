"""The reading of the tables of servers: which of the aims are reached, by the intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.serving.figures import ServingFigures
from benchmarks.serving.records import ServingBenchmark
from benchmarks.serving.systems import OWN
from benchmarks.serving.texts import WORKLOADS
from bertender.core.speedup import Speedup

__all__ = ["AIMS", "Aim", "serving_reading", "verdict"]


@dataclass(frozen=True)
class Aim:
    """A row of AIMS."""

    words: str
    figure: Callable[[ServingFigures], Speedup | None]
    line: float
    at_least: bool = True

    def reached(self, figure: Speedup) -> str:
        """Return on which side of the line an interval lies."""
        better, worse = (
            (figure.low >= self.line, figure.high < self.line)
            if self.at_least
            else (figure.high <= self.line, figure.low > self.line)
        )
        return "reached" if better else "missed" if worse else "not distinguished from it"


AIMS = (
    Aim(
        "of the ceiling at 16 texts a request",
        lambda figures: figures.share_of_ceiling(OWN, "16 texts a request"),
        0.95,
    ),
    Aim(
        "of the ceiling at 1 text a request",
        lambda figures: figures.share_of_ceiling(OWN, "1 text a request"),
        0.85,
    ),
    Aim(
        "ms added at p50 for one caller",
        lambda figures: figures.added_ms(OWN, "one caller"),
        0.5,
        at_least=False,
    ),
    Aim(
        "times the padded repository's rate at equal p99",
        lambda figures: figures.against_padded(),
        3.0,
    ),
)


def serving_reading(result: ServingBenchmark) -> list[str]:
    """Return a line for each aim and workload; none where our endpoint on the CPU was left out."""
    return [
        f"- {WORKLOADS[workload].title}: {verdict(aim, figures)}"
        for workload in result.workloads
        if (figures := ServingFigures(result, workload)).visits(OWN)
        for aim in AIMS
    ]


def verdict(aim: Aim, figures: ServingFigures) -> str:
    """Return a figure next to its aim, in words."""
    side = "at least" if aim.at_least else "at most"
    figure = aim.figure(figures)
    if figure is None:
        return f"no figure of {aim.words} (aim: {side} {aim.line:g})."
    return (
        f"{figure.value:.3g} [{figure.low:.3g}, {figure.high:.3g}] {aim.words} "
        f"(aim: {side} {aim.line:g}): {aim.reached(figure)}."
    )
