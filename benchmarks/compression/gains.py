"""Score differences between systems and the control, which is trained without a teacher."""

from __future__ import annotations

import statistics

from benchmarks.compression.records import CompressionBenchmark
from benchmarks.compression.systems import CONTROLS
from benchmarks.students.measuring import groups_of
from bertender.metrics.resampling import Change

__all__ = ["control_of", "gains_of"]


def control_of(result: CompressionBenchmark) -> str | None:
    """Return the control that is best on the texts to choose by; None where there is none."""
    groups = groups_of(result.scores.students)
    choices = {
        name: statistics.mean([each.choice.value for each in groups[name]])
        for name in CONTROLS
        if name in groups
    }
    return max(choices, key=choices.__getitem__) if choices else None


def gains_of(result: CompressionBenchmark) -> dict[str, Change]:
    """Return the points of every other system over the control; none without it."""
    scores, control = result.scores, control_of(result)
    if control is None:
        return {}
    groups = groups_of(scores.students)
    return {
        each.name: scores.gained(groups[control], groups[each.name])
        for each in result.systems
        if each.name != control
    }
