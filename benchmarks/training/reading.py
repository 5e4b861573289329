"""The reading of the table of training costs: how fast, and whether any way's score differs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.points import gained
from benchmarks.common.words import above, below, listed, paragraph, ticked
from benchmarks.training.measuring import TrainingBenchmark
from benchmarks.training.table import epochs_s, further_gain, speedup_of
from benchmarks.training.ways_to_distil import WAYS, TrainingRun
from bertender.metrics.records import Change

__all__ = ["training_reading"]

RANDOM = "random"
"""The way whose batches are those of `usual`."""


def training_reading(files: Mapping[str, Path]) -> str:
    """Return how many times as fast each way is, and which scores can be distinguished."""
    (path,) = files.values()
    result = TrainingBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    runs = {name: [run for run in result.runs if run.way == name] for name in WAYS}
    runs = {name: sorted(own, key=lambda run: run.seed) for name, own in runs.items() if own}
    usual, *others = runs
    gains = {name: gained(result.metric, result.labels, runs[usual], runs[name]) for name in others}
    further = {name: further_gain(result, runs[usual], runs[name]) for name in others}
    texts = f"the {len(result.labels)} held-out texts"
    return paragraph(
        _times(runs),
        _differences(gains, usual, texts),
        _differences(further, usual, f"{len(result.further_labels)} further texts")
        if result.further_labels
        else "",
        _without_loss(runs, further) if result.further_from == "selection" else "",
    )


def _times(runs: Mapping[str, list[TrainingRun]]) -> str:
    """Return which way is the fastest, and how much longer random batches take, in words."""
    median = {
        name: statistics.median(second for run in own for second in epochs_s(run))
        for name, own in runs.items()
    }
    usual, fastest = next(iter(runs)), min(median, key=lambda name: median[name])
    ratio = speedup_of(runs[usual], runs[fastest]).value
    sentence = f"The fastest, `{fastest}`, has {ratio:.1f} times the speed of `{usual}`"
    if RANDOM in median and fastest != RANDOM:
        times = median[RANDOM] / median[fastest]
        sentence += f"; `--batches {RANDOM}` takes {times:.1f} times as long"
    return f"{sentence}."


def _differences(gains: Mapping[str, Change], usual: str, texts: str) -> str:
    """Return which ways score differently from the usual one, in words."""
    clear = [
        f"{ticked(names)} {'scores' if len(names) == 1 else 'score'} {side} `{usual}`"
        for side, names in (("above", above(gains)), ("below", below(gains)))
        if names
    ]
    if clear:
        return f"On {texts}, {listed(clear)}, by an interval without 0."
    return f"On {texts}, no way's score can be distinguished from that of `{usual}`."


def _without_loss(runs: Mapping[str, list[TrainingRun]], further: Mapping[str, Change]) -> str:
    """Return the fastest of the ways whose mean is not below the usual one's, in words."""
    usual = next(iter(runs))
    speed = {
        name: speedup_of(runs[usual], runs[name]).value
        for name, change in further.items()
        if change.value >= 0
    }
    if not speed:
        return f"No way's mean reaches that of `{usual}` there."
    best = max(speed, key=lambda name: speed[name])
    return (
        f"No model has read these texts, and by the mean over them `{best}` is the fastest way "
        f"that loses nothing, {speed[best]:.1f} times the speed of `{usual}`: "
        f"{WAYS[best].summary}."
    )
