"""The gain of distilling over labels alone, in a comparison of several seeds and in the first run.

A comparison holds scores, no predictions: seeds are compared by their range alone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.words import paragraph
from bertender.measure.comparison import Comparison

__all__ = ["FIRST_RUN", "control_reading", "control_words"]

FIRST_RUN = "benchmarks/results/2026-11-21-sst2-one-epoch-cpu-ort1.31.1.json"
"""The first comparison of distilled students and `hard` ones, of one epoch each."""

DISTILLED, CONTROL, WORDS, STATIC = "student", "hard", "bag-of-words", "static"
SEED = re.compile(r"-seed-\d+$")


def control_reading(files: Mapping[str, Path]) -> str:
    """Return how distilled students stand to the control, now and in the first run.

    Args:
        files: the comparison, and the first run, by the names that are shown.
    """
    now, first = (_read(path) for path in files.values())
    return paragraph(
        control_words(now),
        _first_words(_seeds(first, DISTILLED), _seeds(first, CONTROL), list(files)[1]),
        _below_transformers(now),
    )


def control_words(comparison: Comparison) -> str:
    """Return how the distilled students' scores compare with the control's, in words."""
    distilled, control = _seeds(comparison, DISTILLED), _seeds(comparison, CONTROL)
    if not (distilled and control):
        return ""
    return (
        f"Distilled students score {statistics.mean(distilled):.4f} on average over "
        f"{_counted(distilled)}; the control `{CONTROL}`, the same student trained on labels "
        f"alone, scores {statistics.mean(control):.4f} over {_counted(control)}. "
        f"{_distinguished(distilled, control)}"
    )


def _counted(seeds: Sequence[float]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"


def _read(path: Path) -> Comparison:
    return Comparison.model_validate_json(path.read_text(encoding="utf-8"))


def _seeds(comparison: Comparison, name: str) -> list[float]:
    return [row.score.value for row in comparison.rows if SEED.sub("", row.name) == name]


def _distinguished(distilled: Sequence[float], control: Sequence[float]) -> str:
    """Return in words whether every seed of one is above every seed of the other."""
    if min(distilled) > max(control):
        return "Every distilled seed is above every seed of the control; so few seeds prove little."
    if max(distilled) < min(control):
        return "Every distilled seed is below every seed of the control: distilling lost here."
    return (
        f"Their seeds overlap (the worst distilled one scores {min(distilled):.4f}, the best of "
        f"`{CONTROL}` {max(control):.4f}), so this shows no gain."
    )


def _first_words(distilled: Sequence[float], control: Sequence[float], file: str) -> str:
    means = statistics.mean(distilled), statistics.mean(control)
    sentence = "did not beat the control" if means[0] <= means[1] else "stood above the control"
    return (
        f"In the first run, with another teacher and one epoch for each student, distilling "
        f"{sentence}: {means[0]:.4f} against {means[1]:.4f} (`{file}`)."
    )


def _below_transformers(comparison: Comparison) -> str:
    """Return in words how far bag of words and static student are below the worst transformer."""
    scores = {row.name: row.score.value for row in comparison.rows}
    worst = min(value for name, value in scores.items() if not name.startswith((WORDS, STATIC)))
    names = {WORDS: "bag of words", STATIC: "static student"}
    sentences = [
        f"The {words} is {_points_away(scores[name] - worst)} the worst transformer."
        for name, words in names.items()
        if name in scores
    ]
    if scores.get(STATIC, 1.0) < scores.get(WORDS, 0.0):
        sentences.append(
            "So the static student, which learned from the same texts, loses to the bag of words."
        )
    return " ".join(sentences)


def _points_away(gap: float) -> str:
    return f"{abs(100 * gap):.1f} points {'above' if gap > 0 else 'below'}"
