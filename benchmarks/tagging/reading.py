"""The reading of the table of taggers: losses, and the distance to the teacher."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.words import above, below, holding, paragraph, ticked
from benchmarks.tagging.measuring import CONTROL, TaggerResult, TaggingBenchmark
from benchmarks.tagging.table import tagging_gain

__all__ = ["tagging_reading"]


def tagging_reading(files: Mapping[str, Path]) -> str:
    """Return which losses gain over labels alone, and how far the best is below the teacher."""
    (path,) = files.values()
    result = TaggingBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    by_loss: dict[str, list[TaggerResult]] = {}
    for student in result.students:
        by_loss.setdefault(student.loss, []).append(student)
    gains = {
        name: tagging_gain(result, by_loss[CONTROL], own)
        for name, own in by_loss.items()
        if name != CONTROL
    }
    best = max(statistics.mean(each.score.value for each in own) for own in by_loss.values())
    return paragraph(
        f"By their intervals, the gain over `{CONTROL}` is above 0 for {ticked(above(gains))}, "
        f"below 0 for {ticked(below(gains))}, and cannot be decided for {ticked(holding(gains))}.",
        f"The best students are {100 * (result.teacher.score.value - best):.1f} points of F1 "
        "below the teacher, on average over their seeds.",
    )
