"""The reading of the table of rivals: where bertender's fastest row wins, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from benchmarks.common.words import above, below, holding, listed, ratio, ticked
from benchmarks.rivals.figures import RivalFigures, over, over_in_batches
from benchmarks.rivals.libraries import RIVALS
from benchmarks.rivals.records import RivalRow
from bertender.core.speedup import Speedup
from bertender.measure.latency_records import Latency

__all__ = ["WAYS", "Way", "rivals_reading"]

FLOATS = "float32 or bfloat16"
PRECISIONS = {
    **{f"int{bits}": f"{bits} bits" for bits in (8, 4, 3, 2)},
    "float32": FLOATS,
    "bfloat16": FLOATS,
}
"""Precision of a row -> words; rows are compared within one. Some runtimes compute in bfloat16 by
themselves, so that what a row was asked to compute in does not tell those two apart."""


@dataclass(frozen=True)
class Way:
    """A row of WAYS."""

    words: str
    """In which `{}` stands for what is classified."""
    speed: Callable[[Latency], float]
    ratio: Callable[[Latency, Latency], Speedup]
    """(reference, row) -> how many times as fast"""


WAYS = (
    Way("One {} at a time", lambda latency: -latency.single.p50_ms, over),
    Way("In batches", lambda latency: latency.texts_per_second, over_in_batches),
)


def rivals_reading(figures: RivalFigures) -> list[str]:
    """Return a line for each way of calling, in each precision."""
    unknown = {row.precision for row in figures.rows} - PRECISIONS.keys()
    assert not unknown, unknown
    unit = figures.result.unit
    return [
        f"- {way.words.format(unit)}, in {words}: {_verdict(figures, way, _rows(figures, words))}"
        for words in dict.fromkeys(PRECISIONS.values())
        for way in WAYS
        if _rows(figures, words)
    ]


def _rows(figures: RivalFigures, words: str) -> list[RivalRow]:
    return [row for row in figures.rows if PRECISIONS[row.precision] == words]


def _verdict(figures: RivalFigures, way: Way, rows: Collection[RivalRow]) -> str:
    """Compare the fastest row of bertender with each rival, by the intervals."""
    own = [row.name for row in rows if RIVALS[row.rival].own]
    rivals = {row.name: row for row in rows if not RIVALS[row.rival].own}
    if not own:
        return "bertender has no row."
    fastest = max(own, key=lambda name: way.speed(figures.latency[name]))
    reference = figures.latency[fastest]
    speeds = {name: way.ratio(reference, figures.latency[name]) for name in rivals}
    faster = listed(_shown(rivals[name], speeds[name]) for name in above(speeds, 1.0))
    return (
        f"the fastest row of bertender is `{fastest}`. Faster than it: {faster}. Not "
        f"distinguished from it: {ticked(holding(speeds, 1.0))}. Slower: "
        f"{ticked(below(speeds, 1.0))}."
    )


def _shown(row: RivalRow, speed: Speedup) -> str:
    """Return a rival that is faster, and whether it predicts what the reference does."""
    return f"`{row.name}` ({ratio(speed)}, {row.agreement:.2%} same labels)"
