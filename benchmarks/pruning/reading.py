"""The reading of the curves of pruning, point by point: they have no intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.words import listed
from benchmarks.methods.measuring import MethodsBenchmark
from benchmarks.pruning.curve import curve
from benchmarks.pruning.measuring import CONTROL, IMPORTANCES_SHOWN, PruningBenchmark
from bertender.measure.constant import most_frequent
from bertender.metrics.scores import score

__all__ = ["pruning_reading"]

HALF = 0.5
BEST = "gradient"


def pruning_reading(files: Mapping[str, Path]) -> str:
    """Return how importances stand to chance, what recovery adds, and where curves end.

    Args:
        files: of pruning benchmarks, and of methods benchmarks of the same tasks, which know what
            always giving the most frequent label scores.
    """
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    methods = [text for name, text in texts.items() if "-methods-" in name]
    constants = dict(map(_constant, methods))
    results = [
        PruningBenchmark.model_validate_json(text)
        for name, text in texts.items()
        if "-methods-" not in name
    ]
    return "\n".join(
        [
            "What the tables show, point by point. A point is one model (without recovery, "
            f"`{CONTROL}` is a mean) and has no interval, so that a small difference proves "
            "little.",
            "",
            *(_line(each, constants.get(each.task)) for each in results),
            "",
        ]
    )


def _constant(text: str) -> tuple[str, float]:
    """Return a task, and what the most frequent label alone scores there."""
    result = MethodsBenchmark.model_validate_json(text)
    predictions = [most_frequent(result.labels)] * len(result.labels)
    return result.task, score(result.metric, result.labels, predictions).value


def _line(result: PruningBenchmark, constant: float | None) -> str:
    others = [name for name in IMPORTANCES_SHOWN if name != CONTROL]
    chance = curve(result.points, CONTROL, recovered=False)
    sides = listed(
        f"`{name}` at {_higher(curve(result.points, name, recovered=False), chance)}"
        for name in others
    )
    raised = listed(f"`{name}` at {_raised(result, name)}" for name in (*others, CONTROL))
    return (
        f"- {result.task}: without recovery, above `{CONTROL}` are {sides} shares. Recovery raises "
        f"{raised}. {_half(result)}{_end(result, constant)}"
    )


def _raised(result: PruningBenchmark, name: str) -> str:
    """Return at how many shares recovery raises the score."""
    return _higher(*(curve(result.points, name, recovered) for recovered in (True, False)))


def _higher(ours: Mapping[float, float], theirs: Mapping[float, float]) -> str:
    """Return at how many of the shares that both have ours are higher."""
    both = [share for share in ours if share in theirs]
    return f"{sum(ours[share] > theirs[share] for share in both)} of {len(both)}"


def _half(result: PruningBenchmark) -> str:
    """Return in words what the cut nearest to half of the heads loses after recovery."""
    scores = curve(result.points, BEST, recovered=True)
    if not scores:
        return ""
    share = min(scores, key=lambda each: abs(each - HALF))
    change = 100 * (scores[share] - result.unpruned)
    return (
        f"{share:.0%} of the heads cut by `{BEST}`, with recovery, change the score by "
        f"{change:+.1f} points."
    )


def _end(result: PruningBenchmark, constant: float | None) -> str:
    """Return in words how many cuts score no more than one label for every text does."""
    if constant is None:
        return ""
    low = sum(round(each.score, 3) <= round(constant, 3) for each in result.points)
    return (
        f" {low} of {len(result.points)} cuts score no more than always giving the most frequent "
        f"label does ({constant:.3f})."
    )
