"""The gain of distilling over labels alone in a comparison of several seeds, and in the first.

A comparison holds scores, no predictions: seeds are compared by their range alone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.readings.words import paragraph
from bertender.measure.comparison import Comparison

__all__ = ["FIRST_RUN", "control_reading"]

FIRST_RUN = "benchmarks/results/2026-11-21-sst2-one-epoch-cpu-ort1.31.1.json"
"""The first comparison of distilled students and `hard` ones, of one epoch each."""

DISTILLED, CONTROL, WORDS = "student", "hard", "bag-of-words"
SEED = re.compile(r"-seed-\d+$")


def control_reading(files: Mapping[str, Path]) -> str:
    """Return how distilled students stand to the control, now and in the first run.

    Args:
        files: the comparison, and the first run, by the names that are shown.
    """
    now, first = (_read(path) for path in files.values())
    distilled, control = _seeds(now, DISTILLED), _seeds(now, CONTROL)
    count = f"{len(distilled)} seeds"
    return paragraph(
        f"Against labels alone: over {count} the distilled students score "
        f"{statistics.mean(distilled):.4f} on average, and `{CONTROL}`, the same student without a "
        f"teacher's outputs, {statistics.mean(control):.4f}. {_told_apart(distilled, control)}",
        _first_words(_seeds(first, DISTILLED), _seeds(first, CONTROL), list(files)[1]),
        _bag_of_words(now),
    )


def _read(path: Path) -> Comparison:
    return Comparison.model_validate_json(path.read_text(encoding="utf-8"))


def _seeds(comparison: Comparison, name: str) -> list[float]:
    return [row.score.value for row in comparison.rows if SEED.sub("", row.name) == name]


def _told_apart(distilled: Sequence[float], control: Sequence[float]) -> str:
    """Say whether every seed of one is above every seed of the other."""
    if min(distilled) > max(control):
        return "Every distilled seed is above every one of the control; so few prove little."
    if max(distilled) < min(control):
        return "Every distilled seed is below every seed of the control: distilling lost here."
    return (
        f"Their seeds overlap (the worst distilled one has {min(distilled):.4f}, the best of "
        f"`{CONTROL}` {max(control):.4f}), so that this shows no gain."
    )


def _first_words(distilled: Sequence[float], control: Sequence[float], file: str) -> str:
    means = statistics.mean(distilled), statistics.mean(control)
    said = "did not beat the control" if means[0] <= means[1] else "stood above the control"
    return (
        f"In the first run, with another teacher and one epoch for each student, distilling "
        f"{said}: {means[0]:.4f} against {means[1]:.4f} (`{file}`)."
    )


def _bag_of_words(comparison: Comparison) -> str:
    """Say how far the bag of words is below the worst encoder."""
    scores = {row.name: row.score.value for row in comparison.rows}
    words = scores.pop(WORDS, None)
    if words is None:
        return ""
    gap = 100 * (min(scores.values()) - words)
    side = "below" if gap > 0 else "above"
    return f"The bag of words is {abs(gap):.1f} points {side} the worst encoder."
