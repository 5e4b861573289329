"""The table of a training benchmark, as Markdown: seconds an epoch, and what each way gains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.points import gain, gained, points
from benchmarks.training.measuring import TrainingBenchmark
from benchmarks.training.ways_to_distil import WAYS, TrainingRun
from bertender.core.environment import Environment
from bertender.core.processors import processor_name
from bertender.measure.load import busiest
from bertender.measure.samples import Speedup, speedup
from bertender.metrics.records import Change

__all__ = ["epochs_s", "further_gain", "load_words", "speedup_of", "training_block"]


def training_block(file: str, path: Path) -> str:
    """Return the table of the benchmark at `path`, what it was measured under, and its file."""
    benchmark = TrainingBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    ways = [name for name in WAYS if any(run.way == name for run in benchmark.runs)]
    runs = {name: [run for run in benchmark.runs if run.way == name] for name in ways}
    metric = benchmark.metric
    further = len(benchmark.further_labels)
    last = f" On {further} further texts |" if further else ""
    head = (
        f"| Way | Seconds an epoch | Speedup | Texts/s | In the teacher | {metric}, mean | "
        f"Points over the first |{last}\n"
        f"| --- | ---: | ---: | ---: | ---: | ---: | ---: |{' ---: |' if further else ''}\n"
    )
    rows = "\n".join(_row(name, runs, benchmark) for name in runs)
    return f"{head}{rows}\n\n{_conditions(benchmark)}\n\nRaw: `{file}`\n"


def _row(name: str, by_way: Mapping[str, list[TrainingRun]], result: TrainingBenchmark) -> str:
    usual = next(iter(WAYS))
    runs, first = (sorted(by_way[way], key=lambda run: run.seed) for way in (name, usual))
    epoch_s = statistics.median(second for run in runs for second in epochs_s(run))
    share = statistics.mean(run.teacher_s / run.seconds for run in runs)
    score = statistics.mean(run.score.value for run in runs)
    cells = (
        f"`{name}`",
        f"{epoch_s:.1f}",
        _speedup(speedup_of(first, runs)),
        f"{result.texts / epoch_s:.0f}",
        f"{share:.0%}",
        f"{score:.3f}",
        "-" if name == usual else gain(result.metric, result.labels, first, runs),
        *(_further(name == usual, first, runs, result) if result.further_labels else ()),
    )
    return f"| {' | '.join(cells)} |"


def _further(
    is_first: bool, first: list[TrainingRun], runs: list[TrainingRun], result: TrainingBenchmark
) -> tuple[str]:
    """Return the cell of the texts that no student has read, next to the held-out ones."""
    if is_first:
        return ("-",)
    return (points(further_gain(result, first, runs)),)


def further_gain(
    result: TrainingBenchmark, first: Sequence[TrainingRun], runs: Sequence[TrainingRun]
) -> Change:
    """Return what runs gain over the first way's on the further texts."""
    predictions = [[_Predictions(run.further_predictions) for run in way] for way in (first, runs)]
    return gained(result.metric, result.further_labels, *predictions)


@dataclass(frozen=True)
class _Predictions:
    predictions: tuple[int, ...]


def epochs_s(run: TrainingRun) -> list[float]:
    """Return each epoch's seconds, with its part of what was computed once for all of them."""
    return [each + run.kept_s / len(run.epoch_s) for each in run.epoch_s]


def speedup_of(first: Sequence[TrainingRun], runs: Sequence[TrainingRun]) -> Speedup:
    """Compare epoch by epoch, the machine being about the same for both."""
    reference, candidate = (
        [[seconds * 1000] for run in way for seconds in epochs_s(run)] for way in (first, runs)
    )
    return speedup(reference, candidate)


def _speedup(ratio: Speedup) -> str:
    return f"{ratio.value:.1f}x [{ratio.low:.1f}, {ratio.high:.1f}]"


def _conditions(result: TrainingBenchmark) -> str:
    config, here = result.config, result.environment
    seeds = len({run.seed for run in result.runs})
    present = {run.way for run in result.runs}
    ways = "\n".join(f"- `{name}`: {way.summary}" for name, way in WAYS.items() if name in present)
    precision = "bf16" if result.bf16 else "fp32, as this machine has no bf16"
    auto = " and ".join(
        f"`{name}`" for name, way in WAYS.items() if name in present and way.precision == "auto"
    )
    return (
        f"{ways}\n\n"
        f"{result.task}: the same {result.texts} training texts of {result.tokens:.1f} tokens on "
        f"average, batches of {config['batch_size']}, `max_length` {config['max_length']}, "
        f"{config['epochs']} epochs, {seeds} seeds, students of {config['layers']} layers by soft "
        f"and hard labels. {auto} computed in {precision}. Seconds hold each epoch's part of the "
        "cached outputs, computed anew for every student; scoring is left out. Intervals are of "
        f"95 %, those of points over texts and seeds.{_further_from(result)} "
        f"{load_words(result.runs)} {_machine(here, result.threads)}"
    )


FURTHER = {
    "train": " The further texts are of the training file: the teacher has learned from them, no "
    "student has.",
    "selection": " The further texts are of the training file, and no model has learned from them.",
}


def _further_from(result: TrainingBenchmark) -> str:
    return FURTHER[result.further_from] if result.further_labels else ""


def load_words(runs: Sequence[TrainingRun]) -> str:
    """Return how busy the machine was in the busiest run, in words."""
    loads = [run.load for run in runs if run.load is not None]
    if len(loads) < len(runs):
        return "Load not recorded."
    return f"In the busiest run, {busiest(loads)}."


def _machine(here: Environment, threads: int) -> str:
    versions = ", ".join(f"{name} {here.versions[name]}" for name in ("torch", "transformers"))
    return f"{processor_name(here)}, {threads} threads; {versions}."
