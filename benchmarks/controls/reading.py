"""The reading of the table of controls: which ways pay, and on which sets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.words import above, below, listed, paragraph, verdict
from benchmarks.controls.table import (
    Students,
    average_gain,
    average_gain_of_the_better,
    read_students,
)
from benchmarks.controls.ways_to_train import WAYS
from bertender.metrics.records import Change

__all__ = ["LEAST_GAIN", "controls_reading"]

LEAST_GAIN = 1.0
"""Aim: points over the stronger control, on average over the sets."""


def controls_reading(files: Mapping[str, Path]) -> str:
    """Return a line for each way that distils: its average gain, and where it is sure."""
    tasks = read_students([*files.values()])
    ways = [
        name
        for name, way in WAYS.items()
        if way.control is None and all(name in task.by_way for task in tasks)
    ]
    lines = [f"- {_line(way, tasks)}" for way in ways]
    best = max(ways, key=lambda way: _choice(way, tasks))
    return "\n".join(
        [
            f"Against the stronger control of each set, by intervals over {_drawn(tasks)}:",
            "",
            *lines,
            f"- {_chosen(best, tasks)}",
            "",
            paragraph(
                *(
                    [f"On average, `{best}` scores best on the texts to choose by."]
                    if len(ways) > 1
                    else []
                ),
                _judged(average_gain(tasks, best)),
            ),
        ]
    )


def _choice(way: str, tasks: list[Students]) -> float:
    """Return the mean over sets of what a way's students score on the texts to choose by."""
    return statistics.mean(
        statistics.mean(each.choice.value for each in task.of(way)) for task in tasks
    )


def _drawn(tasks: list[Students]) -> str:
    """Return what the intervals are over: one seed has no spread."""
    several = any(len({each.seed for each in task.benchmark.students}) > 1 for task in tasks)
    return "texts and seeds" if several else "texts, of one seed"


def _chosen(way: str, tasks: list[Students]) -> str:
    taken = [task.benchmark.task for task in tasks if task.better(way) == task.stronger]
    return (
        f"Where the texts to choose by decide between `{way}` and the control, which they take on "
        f"{listed(taken)}: {points(average_gain_of_the_better(tasks, way))} points on average over "
        "always the control, for the time of both trainings"
    )


def _judged(gain: Change) -> str:
    reached = gain.value >= LEAST_GAIN and gain.low > 0
    return (
        f"The aim is a gain of {LEAST_GAIN:.1f} points on average, with an interval above 0: it is "
        f"{verdict(reached)}."
    )


def _line(way: str, tasks: list[Students]) -> str:
    gains: dict[str, Change] = {
        task.benchmark.task: task.gain(way, task.stronger).change() for task in tasks
    }
    average = average_gain(tasks, way)
    return (
        f"`{way}`: {points(average)} points on average; above 0 on {listed(above(gains))}, below 0 "
        f"on {listed(below(gains))}"
    )
